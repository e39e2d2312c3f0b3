# `make demo` shows what Millstream does; `make test` runs every test. Both set up what they need.
.PHONY: demo test check check-features experiments reference wheel

CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR

# The demo needs none of the optional components. Its build is short rather than its run.
demo:
	@scripts/install-test-packages.sh
	cargo build --locked --profile demo -p millstream-cli --no-default-features
	@mkdir -p out
	$(CARGO_TARGET_DIR)/demo/millstream run examples/geonames/job.yaml
	@echo
	@sqlite3 -header -column out/geonames.db 'SELECT * FROM people_by_country ORDER BY people DESC LIMIT 10'

# Many tests wait for servers, so one more runs at a time than there are cores.
test:
	@scripts/install-test-packages.sh pages
	@scripts/install-test-servers.sh
	@scripts/install-test-kafka.sh
	RUST_TEST_THREADS=$$(($$(nproc) + 2)) scripts/show-failures.sh cargo test --locked --workspace --no-fail-fast
	PROGRAMS=$(CARGO_TARGET_DIR)/debug python3 -m unittest discover -s benches/tests

check:
	@scripts/install-test-packages.sh
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" \
		cargo doc --locked --workspace --no-deps --document-private-items
	python3 scripts/check-lines.py

check-features:
	cargo clippy --locked -p millstream-cli --no-default-features -- -D warnings
	cargo clippy --locked -p millstream-cli --no-default-features --features mysql -- -D warnings
	cargo clippy --locked -p millstream-cli --no-default-features --features cloud,sftp -- -D warnings
	cargo clippy --locked -p millstream-cli --no-default-features --features ftp,postgres -- -D warnings
	cargo clippy --locked -p millstream-cli --no-default-features --features kafka -- -D warnings
	cargo clippy --locked -p millstream-cli --no-default-features --features redis -- -D warnings

# What decisions rest on. They say when others have changed what they found; some rounds take long.
experiments:
	cd experiments/ballista && cargo test --locked -- --nocapture

# The Python package. Its tests pack one themselves, of the library that `make test` builds.
wheel:
	cd crates/python && "$$(../../scripts/install-python-tools.sh)/bin/maturin" build --release --locked --out ../../dist

# Written from the specs of the components; a test tells when it is out of date.
reference:
	cargo build --locked -p millstream-cli
	$(CARGO_TARGET_DIR)/debug/millstream reference > docs/reference/job-file.md
	$(CARGO_TARGET_DIR)/debug/millstream reference --of-machine > docs/reference/machine-file.md
	$(CARGO_TARGET_DIR)/debug/millstream reference --of-sequence > docs/reference/sequence-file.md
