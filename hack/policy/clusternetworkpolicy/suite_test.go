// Package clusternetworkpolicy runs the tests of ClusterNetworkPolicy of
// sigs.k8s.io/network-policy-api, on one node. Their own program waits for two pods of the host's
// network with the same ports, which need two nodes. One of them runs here; only tests of peers by
// nodes connect to them.
package clusternetworkpolicy

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	helper "sigs.k8s.io/network-policy-api/conformance/utils/kubernetes"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

// The StatefulSets of the suite, by the last word of their namespaces.
var houses = map[string]string{
	"gryffindor": "harry-potter", "slytherin": "draco-malfoy", "hufflepuff": "cedric-diggory",
	"ravenclaw": "luna-lovegood",
}

func TestConformance(t *testing.T) {
	c, err := config.GetConfig()
	if err != nil {
		t.Fatal(err)
	}
	c.QPS = -1
	api, err := client.New(c, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := policyv1alpha2.Install(api.Scheme()); err != nil {
		t.Fatal(err)
	}
	set, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	s := suite.New(suite.Options{
		Client: api, ClientSet: set, KubeConfig: *c,
		SupportedFeatures: sets.New(suite.SupportClusterNetworkPolicy, suite.SupportClusterNetworkPolicyNamedPorts),
	})
	for port := 34345; port < 34353; port++ {
		s.HostNetworkPorts = append(s.HostNetworkPorts, port)
	}
	s.Applier.FS, s.Applier.HostNetworkPorts = s.FS, s.HostNetworkPorts
	s.Applier.MustApplyWithCleanup(t, s.Client, s.TimeoutConfig, s.BaseManifests, false)
	for house, pods := range houses {
		helper.NamespacesMustBeReady(t, s.Client, s.TimeoutConfig, []string{"network-policy-conformance-" + house}, []string{pods})
	}
	s.Run(t, tests.ConformanceTests)
}
