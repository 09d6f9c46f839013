# Everything of substance is Go; make only calls it. Works with make 3.81.

DEV   := go run ./hack/dev
TOOL  := go tool -modfile=go.tool.mod
LINT  := $(TOOL) golangci-lint-kube-api-linter
# Modules of their own for what not every application uses: adapters of routers and RPC, and examples with them.
ADAPTERS := ratelimit/chilimit ratelimit/echolimit ratelimit/ginlimit ratelimit/grpclimit ratelimit/muxlimit ratelimit/otellimit \
	examples/grpc examples/gitops
NESTED := hack/controlplane hack/kwok hack/site bench test/packaging $(ADAPTERS)

# Unit tests stand beside the code. ./test/... needs real servers, and runs one package after the other, for it has deadlines.
UNIT := ./api/... ./cmd/... ./controllers/... ./examples/... ./hack/... ./internal/... ./ratelimit/...

.PHONY: help
help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 24

.PHONY: check
check: lint ## The quick loop: format, lint, vet, unit tests
	go vet ./...
	go test -short $(UNIT)
	set -e; for module in bench $(ADAPTERS); do (cd $$module && go vet ./... && go test -short ./...); done

.PHONY: test
test: deps build-cluster ## Every test, with the real servers it needs; installs and builds them first
	go test -race -timeout 30m $(UNIT)
	go test -race -timeout 30m -p 1 ./test/...
	set -e; for module in $(ADAPTERS); do (cd $$module && go test -race ./...); done
	cd bench && go test ./...
	go test -timeout 30m ./internal/sim
	cd test/packaging && go test -timeout 30m ./...
	cd hack/site && go test ./...

.PHONY: soak
soak: ## 10,000,000 steps of the arithmetic against the exact model (10 minutes)
	WEIR_STEPS=10000000 go test -timeout 60m -count=1 -v -run TestTakeAgainstModel ./internal/enforcer/algorithm

.PHONY: chaos
chaos: deps build-cluster ## Break Redis, controller and API server in turn under load; writes test/chaos/results.json (SOAK=10m goes on)
	go test -count=1 -timeout 180m -v ./test/chaos -rows 2 -store-timeout 10ms -results results.json $(if $(SOAK),-soak $(SOAK))

.PHONY: bench
bench: ## Compare with other libraries on one Redis, in one run (15 minutes); writes bench/results.json, machine.json and results.svg (then: make docs)
	cd bench && go run .

.PHONY: bench-quick
bench-quick: ## The main figures of bench, in under three minutes
	cd bench && go run . -quick -out quick.json

.PHONY: verify
verify: generate ## Regenerate everything, demand a clean tree, lint
	@changed=`git status --porcelain` && if [ -n "$$changed" ]; then git --no-pager diff; echo "make verify: the tree is not clean after make generate:"; echo "$$changed"; exit 1; fi
	go mod tidy -diff
	set -e; for module in $(NESTED); do (cd $$module && go mod tidy -diff); done
	$(MAKE) lint

.PHONY: generate
generate: docs ## Write what follows from the code: CRD, JSON Schema, deep copies, RBAC rules, the chart's files, dist/install.yaml
	$(TOOL) controller-gen object crd paths=./api/... output:crd:dir=config/crd
	go run ./hack/schema
	$(TOOL) controller-gen rbac:roleName=weir-controller paths=./controllers/... output:rbac:dir=config/rbac
	sed 's/^kind: ClusterRole$$/kind: Role/' config/rbac/role.yaml > config/namespaced/role.yaml
	rm -rf charts/weir/files
	mkdir -p charts/weir/files/rbac dist
	cp config/crd/ratelimit.weir.dev_ratelimitpolicies.yaml charts/weir/files/crd.yaml
	cp config/rbac/role.yaml charts/weir/files/role.yaml
	cp config/components/monitoring/service_monitor.yaml config/components/monitoring/prometheus_rule.yaml config/components/monitoring/dashboard.json charts/weir/files/
	cp `grep -l '^kind: ClusterRole' config/rbac/*.yaml` charts/weir/files/rbac/
	$(TOOL) kustomize build config/default > dist/install.yaml

.PHONY: docs
docs: ## Draw the pictures of the pages from the code, and write the tables of docs/performance.md from bench/results.json
	go run ./hack/docs docs/captures docs/images
	cd bench && go run . -page ../docs/performance.md

.PHONY: docs-html
docs-html: ## Make one file of all pages, to be read without a network: bin/docs.html
	cd hack/site && go run . ../.. ../../bin/docs.html

.PHONY: lint
lint: ## Format and lint (the linter itself is built by the first call, in about five minutes)
	$(LINT) fmt --diff
	$(LINT) run
	set -e; for module in $(ADAPTERS); do (cd $$module && go tool -modfile=$(CURDIR)/go.tool.mod golangci-lint-kube-api-linter run -c $(CURDIR)/.golangci.yml); done

.PHONY: scale
scale: build-cluster ## Measure 10,000 policies of 1,000 Deployments (10 minutes); writes test/scale/results.json
	WEIR_SCALE=10000 go test -timeout 30m -count=1 -v -run TestScale ./test/scale

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in what is called; needs the database of vuln.go.dev, or GOVULNDB
	@$(TOOL) govulncheck ./... || { echo "make vulncheck: not clean, or the vulnerability database could not be read (see above): nothing is proven"; exit 1; }

.PHONY: sbom
sbom: ## Write the bill of materials of the controller, bin/manager.spdx.json
	CGO_ENABLED=0 go build -trimpath -o bin/manager ./cmd/manager
	go run ./hack/sbom bin/manager > bin/manager.spdx.json

.PHONY: demo
demo: deps build-cluster ## Show the main job on this machine, step by step and in numbers (KEEP=1 leaves it running)
	@$(DEV) demo

.PHONY: deploy
deploy: ## Install into the cluster of the current kubectl context: make deploy IMG=…
	@IMG="$(IMG)" $(DEV) deploy

.PHONY: cluster
cluster: ## Start a local Kubernetes and print its KUBECONFIG
	@$(DEV) cluster up

.PHONY: cluster-down
cluster-down: ## End the local Kubernetes
	@$(DEV) cluster down

.PHONY: build-cluster
build-cluster: ## Build what the local Kubernetes consists of (once; 15 minutes on two cores)
	@$(DEV) build

.PHONY: deps
deps: ## Install redis-server, PostgreSQL and what else tests need, if already root on Debian
	@$(DEV) deps
