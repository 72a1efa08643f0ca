# SPDX-License-Identifier: Apache-2.0
"""https.py PROGRAM: asks a store on this machine, over TLS, for a checkpoint that it has not. Prints what the program
says, and whether a request came through."""

import http.server
import os
import ssl
import subprocess
import sys
import threading

served = []


class Store(http.server.BaseHTTPRequestHandler):
    def answer(self):
        served.append(self.path)
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = answer


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/share/cert", "/share/key")
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"https://127.0.0.1:{server.server_address[1]}"
env = dict(os.environ, AWS_ENDPOINT_URL=address, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret",
           AWS_REGION="here")
run = subprocess.run([sys.argv[1], "s3://bucket/absent"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                     universal_newlines=True, timeout=120)
print(run.stdout.strip(), "served:", "yes" if served else "no")
