"""A mirror for spark-submit: spark-submit --master URL --py-files klamm.zip mirror_submit.py mm2.properties.

klamm.zip is klamm itself: ``python -m klamm.mirror.spark.shipping klamm.zip`` writes it. Its dependencies have to be
installed where the driver and the workers run.
"""

import logging
import sys
from pathlib import Path

from klamm.mirror.run import run

if not sys.argv[1:]:
    sys.exit("usage: mirror_submit.py mm2.properties [--until-caught-up] [ALIAS ...]")
arguments = sys.argv[2:]
logging.basicConfig(level=logging.INFO)
logging.getLogger("py4j").setLevel(logging.WARNING)
logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it has a line for each attempt to reach a broker
sys.exit(
    run(
        Path(sys.argv[1]),
        [alias for alias in arguments if alias != "--until-caught-up"],
        until_caught_up="--until-caught-up" in arguments,
    )
)
