# Setup, demonstration and tests of towpath: two commands, `make demo` and `make test`.

PREFIX ?= /usr/local
DESTDIR ?=
MIB ?= 1024
# Directories of rustup and system programs, for shells that lack them.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
target = $(or $(CARGO_TARGET_DIR),target)
# `make install` installs the command of `make build` and the C library of `make library`.
profile ?= release
built ?= $(target)/$(profile)
version = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Programs load the library with the major version that they were linked to.
soname = libtowpath.so.$(firstword $(subst ., ,$(version)))
LIBDIR ?= $(PREFIX)/lib
lib = $(DESTDIR)$(LIBDIR)
share = $(DESTDIR)$(PREFIX)/share

.PHONY: help
help:
	@echo 'make demo     build, then move 1 GiB each way through towpath and check it (MIB=$(MIB))'
	@echo 'make test     install what the tests need, then run all checks and tests'
	@echo 'make test-long  tests that take hours: more sizes and seeds, floods, fuzzing'
	@echo 'make papers   repeat what published documents measured, beside their figures: docs/papers.md; as root'
	@echo 'make build    the command: $(target)/release/towpath'
	@echo 'make library  the C library, and the library for LD_PRELOAD'
	@echo 'make install  what was built, with manual pages, completions for shells, header and pkg-config file,'
	@echo '              to PREFIX=$(PREFIX)'
	@echo 'make packages  static command, Debian packages, wheel, npm package: $(target)/packages'
	@echo 'make test-packages  install each of these packages in a fresh system, use and remove it; as root'
	@echo 'make test-engines  real container engines, Docker, QEMU, libvirt over towpath, in fresh systems; as root'
	@echo 'make clean    remove everything that was built'

.PHONY: demo
demo: setup-build
	@cargo build --release --locked --package towpath-cli --bin towpath --example demo
	@cargo run --release --locked --quiet --package towpath-cli --example demo $(MIB)

.PHONY: test
test:
	@bash scripts/setup test
	@bash scripts/guest || echo 'make: tests with virtual machines are skipped' >&2
	@cargo xtask ci

.PHONY: test-long
test-long:
	@bash scripts/setup test
	@bash scripts/guest || echo 'make: tests with virtual machines are skipped' >&2
	@cargo xtask long

.PHONY: papers
papers:
	@bash scripts/setup test
	@bash scripts/guest || echo 'make: machines in QEMU are left out' >&2
	@cargo xtask papers

.PHONY: build
build: setup-build
	@cargo build --release --locked --package towpath-cli

.PHONY: setup-build
setup-build:
	@bash scripts/setup build

# Installs the results of `make build` and `make library`, so that nothing is built as root.
.PHONY: install
install:
	@test -x $(built)/towpath -o -e $(built)/libtowpath_capi.so || \
		{ echo 'make: nothing was built; run "make build" or "make library" first' >&2; exit 1; }
	@if test -x $(built)/towpath; then $(MAKE) --no-print-directory install-command; \
		else echo 'make: without the command, which "make build" builds'; fi
	@if test -e $(built)/libtowpath_capi.so; then $(MAKE) --no-print-directory install-library; \
		else echo 'make: without the C library, which "make library" builds'; fi

.PHONY: install-command
install-command:
	install -D -m 755 $(built)/towpath $(DESTDIR)$(PREFIX)/bin/towpath
	install -d $(share)/man/man1 $(share)/man/man8
	install -m 644 docs/man/*.1 $(share)/man/man1
	install -m 644 docs/man/*.8 $(share)/man/man8
	install -d $(DESTDIR)$(PREFIX)/lib/cni $(DESTDIR)$(PREFIX)/lib/netavark
	ln -sf ../../bin/towpath $(DESTDIR)$(PREFIX)/lib/cni/towpath-cni
	ln -sf ../../bin/towpath $(DESTDIR)$(PREFIX)/lib/netavark/towpath-cni
	install -d $(share)/bash-completion/completions $(share)/zsh/site-functions $(share)/fish/vendor_completions.d
	$(built)/towpath completions bash >$(share)/bash-completion/completions/towpath
	$(built)/towpath completions zsh >$(share)/zsh/site-functions/_towpath
	$(built)/towpath completions fish >$(share)/fish/vendor_completions.d/towpath.fish
	chmod 644 $(share)/bash-completion/completions/towpath $(share)/zsh/site-functions/_towpath \
		$(share)/fish/vendor_completions.d/towpath.fish

.PHONY: library
library: setup-build
	@cargo build --profile $(profile:debug=dev) --locked --package towpath-capi --package towpath-preload

.PHONY: install-library
install-library:
	install -d $(lib)/pkgconfig $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 755 $(built)/libtowpath_capi.so $(lib)/libtowpath.so.$(version)
	ln -sf libtowpath.so.$(version) $(lib)/$(soname)
	ln -sf $(soname) $(lib)/libtowpath.so
	install -m 644 $(built)/libtowpath_capi.a $(lib)/libtowpath.a
	install -m 644 crates/capi/include/towpath.h $(DESTDIR)$(PREFIX)/include
	install -m 644 docs/man/*.3 $(DESTDIR)$(PREFIX)/share/man/man3
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR:$(PREFIX)/%=$${prefix}/%)|; s|@VERSION@|$(version)|' \
		crates/capi/towpath.pc.in >$(lib)/pkgconfig/towpath.pc
	@if test -e $(built)/libtowpath_preload.so; then $(MAKE) --no-print-directory install-preload; fi

# Programs do not link to it, so it is not among the libraries that the linker finds.
.PHONY: install-preload
install-preload:
	install -D -m 755 $(built)/libtowpath_preload.so $(lib)/towpath/libtowpath_preload.so

.PHONY: packages
packages:
	@bash scripts/setup packages
	@packaging/build

# Tests what `make packages` built.
.PHONY: test-packages
test-packages:
	@bash scripts/setup test-packages
	@packaging/test

# Real container engines and virtual machines, in a fresh Debian with a network of its own. CASES=REGEX selects.
.PHONY: test-engines
test-engines:
	@bash scripts/setup test-engines
	@cargo build --release --locked --package towpath-cli --bin towpath
	@TOWPATH="$${TOWPATH:-$(target)/release/towpath}" sh tests/engines/run "$(CASES)"

.PHONY: clean
clean:
	cargo clean
	rm -rf fuzz/artifacts
