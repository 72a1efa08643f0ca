# SPDX-License-Identifier: Apache-2.0
"""borrow.py PYTHON: the packages of the Python that runs this are seen by a fresh environment's PYTHON, too, behind its own."""

import subprocess
import sys
import sysconfig

site = subprocess.run([sys.argv[1], "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True,
                      capture_output=True, text=True).stdout.strip()
with open(site + "/borrowed.pth", "w") as file:
    print(sysconfig.get_path("purelib"), file=file)
