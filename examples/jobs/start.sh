#!/bin/sh
# The entry point of each replica: one migrates the database while the others wait, and find nothing left to do. A replica whose
# migrations fail, or that waits for too long, doesn't start.
set -e
redlock run --wait 10m migrations -- ./migrate
exec ./server
