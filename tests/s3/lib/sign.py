# SPDX-License-Identifier: Apache-2.0
"""Requests of the standard input (method, path, query, headers, time; tab-separated) as botocore
signs them, with the key and secret of AWS's examples: the header Authorization of each."""
import datetime
import sys
from unittest import mock

import botocore.auth
import botocore.awsrequest
import botocore.credentials

creds = botocore.credentials.Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
for line in sys.stdin:
    method, path, query, headers, when, _ = line.rstrip("\n").split("\t")
    now = datetime.datetime.fromtimestamp(int(when), datetime.timezone.utc)
    headers = dict(h.split("=", 1) for h in headers.split(";"))
    url = "https://" + headers.pop("host") + path + ("?" + query if query else "")
    headers.pop("x-amz-date")
    request = botocore.awsrequest.AWSRequest(method=method, url=url, headers=headers, data=b"")
    request.context["payload_signing_enabled"] = True
    auth = botocore.auth.S3SigV4Auth(creds, "s3", "us-east-1")
    auth.payload = lambda r: r.headers["x-amz-content-sha256"]
    names = [n for n in dir(botocore.auth) if n in ("datetime", "get_current_datetime")]
    target = "botocore.auth." + ("get_current_datetime" if "get_current_datetime" in names else "datetime")
    with mock.patch(target) as clock:
        if target.endswith("get_current_datetime"):
            clock.return_value = now
        else:
            clock.datetime.utcnow.return_value = now.replace(tzinfo=None)
        kept = headers["x-amz-content-sha256"]
        with mock.patch.object(auth, "payload", lambda r: kept):
            auth.add_auth(request)
    print(request.headers["Authorization"])
