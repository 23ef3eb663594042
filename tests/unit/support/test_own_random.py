from __future__ import annotations

import random
import threading


def test_random_numbers_of_another_thread_leave_the_state_unchanged() -> None:
    before, drawn = random.getstate(), list[float]()
    thread = threading.Thread(target=lambda: drawn.append(random.uniform(1, 2)))
    thread.start()
    thread.join()
    assert 1 <= drawn[0] <= 2
    assert random.getstate() == before
    random.random()
    assert random.getstate() != before
