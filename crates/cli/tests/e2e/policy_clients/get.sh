# Gets the package `demo` from an index with a package manager, anew, and prints the file in it that
# says hello: get.sh KIND INDEX
set -eu
kind=$1 index=$2
certificate=$PWD/cert.pem
rm -rf got
mkdir got
cd got

get_pip() {
    python3 -m pip --disable-pip-version-check --no-cache-dir --retries 1 --timeout 100 \
        --cert "$certificate" install --quiet --target . --index-url "https://$index/simple/" demo
    cat demo.py
}

get_npm() {
    npm --globalconfig /dev/null --cafile "$certificate" --cache cache --fetch-retries 0 \
        --no-audit --no-fund --no-update-notifier --loglevel error \
        --registry "https://$index/" --prefix . install demo >/dev/null
    cat node_modules/demo/index.js
}

get_cargo() {
    mkdir src .cargo
    touch src/lib.rs
    cat >Cargo.toml <<END
[package]
name = "a"
edition = "2021"
[dependencies]
demo = { version = "1", registry = "here" }
END
    cat >.cargo/config.toml <<END
registries.here.index = "sparse+https://$index/"
net.retry = 0
http.timeout = 100
http.cainfo = "$certificate"
END
    CARGO_HOME=$PWD/home cargo fetch --quiet
    cat home/registry/src/*/demo-1.0.0/src/lib.rs
}

get_apt() {
    mkdir -p lists/partial cache/archives/partial
    echo "deb [trusted=yes] https://$index/ ./" >sources.list
    cat >apt.conf <<END
Dir::Etc { parts "/dev/null"; main "/dev/null"; sourceparts "/dev/null"; sourcelist "$PWD/sources.list"; };
Dir::State::lists "$PWD/lists";
Dir::Cache "$PWD/cache";
APT::Sandbox::User "root";
Acquire { Retries 0; Languages "none"; https::Timeout 100; https::CaInfo "$certificate"; };
END
    export APT_CONFIG=$PWD/apt.conf
    apt-get --quiet=2 --error-on=any update
    apt-get --quiet=2 download demo >/dev/null
    dpkg-deb --extract demo*.deb .
    cat usr/share/demo/text
}

"get_$kind"
