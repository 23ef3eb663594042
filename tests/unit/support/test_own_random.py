from __future__ import annotations

import random
import threading


def test_a_draw_of_another_thread_leaves_the_state_of_the_tests_as_it_is() -> None:
    before, drawn = random.getstate(), list[float]()
    thread = threading.Thread(target=lambda: drawn.append(random.uniform(1, 2)))
    thread.start()
    thread.join()
    assert 1 <= drawn[0] <= 2
    assert random.getstate() == before
    random.random()
    assert random.getstate() != before
