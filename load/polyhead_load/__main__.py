"""Run locust with our locustfile, and our options in its --help: `python -m polyhead_load ...`."""

import sys

from locust.main import main

from polyhead_load.command import LOCUSTFILE
from polyhead_load.runs import register

if __name__ == "__main__":
    register()  # the locustfile does too, but locust answers --help without reading it
    sys.argv[:1] = ["locust", "-f", str(LOCUSTFILE)]
    main()
