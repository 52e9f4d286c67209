"""`python -m polyhead_load ...` is locust with our locustfile, and with our options in its --help."""

import sys

from locust.main import main

from polyhead_load.command import LOCUSTFILE
from polyhead_load.runs import register

if __name__ == "__main__":
    register()  # before the locustfile does: locust answers --help without looking into it
    sys.argv[:1] = ["locust", "-f", str(LOCUSTFILE)]
    main()
