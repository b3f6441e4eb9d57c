#!/bin/sh
# Writes FOLDER/cert.pem and key.pem, a certificate for NAMES, in openssl's form, and its own authority.
# usage: certificates.sh FOLDER NAMES
set -eu
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=quartet -keyout "$1/key.pem" -out "$1/cert.pem" \
  -addext "subjectAltName=$2"
chmod 600 "$1/key.pem"
