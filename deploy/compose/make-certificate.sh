# Creates the engine's certificate and its key at the first start. Both stay in the volume.
set -eu
cd /certificate
if [ ! -f engine.pem ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=engine \
        -addext subjectAltName=DNS:engine -keyout engine.key -out new.pem
    chown 10001:10001 engine.key
    mv new.pem engine.pem
fi
