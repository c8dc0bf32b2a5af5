//go:build deps

// Package deps keeps modules in go.mod that the packages under construction are about to import.
package deps

import (
	_ "github.com/spf13/cobra"
	_ "go.etcd.io/etcd/server/v3/embed"
	_ "k8s.io/cri-api/pkg/apis/runtime/v1"
	_ "k8s.io/kubernetes/pkg/controlplane"
	_ "k8s.io/kubernetes/pkg/controlplane/apiserver"
	_ "k8s.io/kubernetes/pkg/kubeapiserver/options"
	_ "k8s.io/kubernetes/pkg/scheduler"
	_ "k8s.io/kubernetes/pkg/kubelet/server"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubelet"
	_ "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	_ "sigs.k8s.io/controller-runtime"
	_ "k8s.io/code-generator/cmd/client-gen"
	_ "k8s.io/kube-openapi/cmd/openapi-gen"
)
