# Named checks. `make` lists them.
GO ?= go

.PHONY: help build test slow lint proto contracts race fuzz golden long faults broken bench arm sanitize ci nightly

help: ## list the checks
	@grep -hE "^[a-z ]+:.*##" $(MAKEFILE_LIST) | sed "s/:.*## /\t/" | expand -t 28

build: ## build ./tandem
	$(GO) build -o tandem ./cmd/tandem

test: ## every change must pass this: go test ./... and a list of what was skipped; 15 minutes on 2 cores where nothing is compiled
	@bash -o pipefail -c '$(GO) test -v ./... 2>&1 | test/scripts/skipped'

slow: ## what go test ./... leaves out: other builds of the program, containers, the browser, Jaeger, ARM, CUDA, training
	./.ci/run $@

lint contracts race fuzz: ## one step of the CI (FUZZTIME=1m make fuzz for longer)
	./.ci/run $@

proto: ## generate the Go code of the contracts
	$(GO) tool -modfile=test/tools/go.mod buf generate

golden: ## compares logits and tokens with another engine's
	$(GO) test ./engine ./engine/arch ./test -run Golden -count 1 -v

long: ## speculation equals plain decoding for all prompts, seeds, trees, drafts, instruction sets: hours on 2 cores; FILTER=go-dev-0 for some
	$(GO) test ./kernels/cpu ./kernels/cuda ./gateway -long -count 1 -timeout 0
	$(GO) test ./engine -run '^TestCoupleModels$$' -long -count 1 -timeout 0
	$(GO) test ./test -run TestLong -long -filter '$(FILTER)' -timeout 0 -count 1 -v

faults: ## processes killed or stopped, messages lost or garbage, in long form: about half an hour on 2 cores
	$(GO) test ./test -run 'TestFaults|TestGatewayKilled|TestNATSKilled|TestPrefixStoreKilled|TestPoolChaos|TestBadDrafter|TestStalledClients|TestSlowClients|TestExactness|TestShapedText|TestTextAcrossBlocks' -long -timeout 0 -count 1 -v

bench: ## the three processes, with plain and speculative decoding in turn
	$(GO) run ./cmd/tandem bench system

arm: ## kernels and passes on ARM, cross-compiled, under qemu; as root it installs missing tools
	./test/scripts/arm

sanitize: ## C code under the address and undefined-behaviour sanitizers; SHORT=-short for a short form
	./test/scripts/sanitize $(SHORT)

ci: ## a landing: what every change must pass, in 45 minutes on 2 cores where nothing is compiled
	./.ci/run

nightly: ## what the landing leaves out: hours
	./.ci/run $@

broken: ## the tests catch a broken accept rule and a width-dependent kernel
	$(GO) test -tags brokenkernel ./kernels/cpu -run TestWidthDependentKernelIsCaught
	! $(GO) test -tags brokenkernel ./kernels/cpu -run 'TestPrograms/RowAlone'
	! $(GO) test ./test -run 'TestSameText$$' -with brokenaccept
	! $(GO) test ./test -run 'TestSameText$$' -with brokenkernel
