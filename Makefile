# Named checks. `make` lists them.
GO ?= go

.PHONY: help build test lint proto contracts race fuzz golden long faults broken bench arm sanitize ci

help: ## list the checks
	@grep -hE "^[a-z ]+:.*##" $(MAKEFILE_LIST) | sed "s/:.*## /\t/" | expand -t 28

build: ## build ./tandem
	$(GO) build -o tandem ./cmd/tandem

test: ## what a change must pass, at most 5 minutes on 2 cores
	$(GO) test ./...

lint contracts race fuzz: ## one step of the CI (FUZZTIME=1m make fuzz for longer)
	./.ci/run $@

proto: ## generate the Go code of the contracts
	$(GO) tool -modfile=tools/go.mod buf generate

golden: ## logits and tokens against another engine's (needs ../shared)
	$(GO) test ./test -run Golden -count 1 -v

long: ## speculation = plain decoding for all prompts, seeds, trees, drafts, instruction sets: hours on 2 cores; FILTER=go-dev-0 for some
	$(GO) test ./test -run TestLong -long -filter '$(FILTER)' -timeout 0 -count 1 -v

faults: ## killed, stopped, lost and garbage, the long forms: about half an hour on 2 cores
	$(GO) test ./test -run 'TestFaults|TestGatewayKilled|TestNATSKilled|TestPoolChaos|TestBadDrafter|TestStalledClients|TestSlowClients|TestExactness' -long -timeout 0 -count 1 -v

bench: ## the three processes, plain and speculative in turn
	$(GO) run ./cmd/tandem bench system

arm: ## kernels and passes on ARM, cross-compiled, under qemu; installs the tools if it may
	./scripts/arm

sanitize: ## C code under the address and undefined-behaviour sanitizers; SHORT=-short for a minute's worth
	./scripts/sanitize $(SHORT)

ci: ## all that the CI does
	./.ci/run

broken: ## the tests catch a broken accept rule and a width-dependent kernel
	! $(GO) test ./test -run 'TestSameText$$' -with brokenaccept
	! $(GO) test ./test -run 'TestSameText$$' -with brokenkernel
