// Package run starts Weir's controller and the replicas of an application beside a local Kubernetes, and sends load to
// them. The demo and the end-to-end tests are built from it.
package run
