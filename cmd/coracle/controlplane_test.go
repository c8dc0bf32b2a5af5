package main

import (
	"slices"
	"strings"
	"testing"
)

func TestControlPlaneNodesAgree(t *testing.T) {
	first := upOptions{
		ServiceCIDR: "10.97.0.0/16", ClusterDNS: []string{"10.97.0.10"}, PoliciesOff: true, Node: "one", Bind: "10.0.0.1",
		NodeIPs: []string{"10.0.0.1"}, PodCIDR: []string{"10.86.0.0/16"}, PodNetwork: "none",
	}
	cluster := first.forControlPlane()
	if cluster.Node != "" || cluster.Bind != "" || len(cluster.NodeIPs) > 0 {
		t.Errorf("the other node would have settings of the first one's machine: %+v", cluster)
	}
	none := func(string) bool { return false }
	own := upOptions{ServiceCIDR: defaultServices, Node: "two", Bind: "10.0.0.2"}
	if err := own.followCluster(cluster, none); err != nil {
		t.Fatal(err)
	}
	if own.ServiceCIDR != first.ServiceCIDR || !slices.Equal(own.ClusterDNS, first.ClusterDNS) || !bool(own.PoliciesOff) ||
		!slices.Equal(own.PodCIDR, first.PodCIDR) || own.PodNetwork != "none" || own.Node != "two" || own.Bind != "10.0.0.2" {
		t.Errorf("it follows %+v", own)
	}
	own.ServiceCIDR = defaultServices
	err := own.followCluster(cluster, func(flag string) bool { return flag == "service-cidr" })
	if err == nil || !strings.Contains(err.Error(), "--service-cidr '"+defaultServices+"': the cluster has --service-cidr '10.97.0.0/16'") {
		t.Errorf("a network of its own: %v", err)
	}

	first.EncryptionConfig = "/etc/coracle/encryption.yaml"
	cluster = first.forControlPlane()
	if err := own.followCluster(cluster, none); err == nil || !strings.Contains(err.Error(), "copy its /etc/coracle/encryption.yaml") {
		t.Errorf("it would store plain what the cluster encrypts: %v", err)
	}
	own.EncryptionConfig = "/etc/other.yaml"
	if err := own.followCluster(cluster, none); err != nil || own.EncryptionConfig != "/etc/other.yaml" {
		t.Errorf("with a file of its own: %v, %s", err, own.EncryptionConfig)
	}
}
