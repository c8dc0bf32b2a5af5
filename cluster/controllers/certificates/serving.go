package certificates

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/apis/certificates"
)

const nodeUser = "system:node:"

// isNodeServing says whether a node asks for a serving certificate of its own.
func isNodeServing(csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) bool {
	return csr.Spec.SignerName == certificatesv1.KubeletServingSignerName &&
		certificates.IsKubeletServingCSR(request, usages(csr)) &&
		csr.Spec.Username == request.Subject.CommonName && slices.Contains(csr.Spec.Groups, "system:nodes")
}

// servable says why a node may not serve under the names and addresses of its request, nil if it
// may. The cluster's authority also signs the API server's certificate, and nodes report their own
// addresses: a node must not get a certificate with which it could pose as the API server or as
// another node. reserved are the names and addresses of the API server.
func servable(request *x509.CertificateRequest, nodes corelisters.NodeLister, reserved []string) error {
	name := strings.TrimPrefix(request.Subject.CommonName, nodeUser)
	node, err := nodes.Get(name)
	if err != nil {
		return fmt.Errorf("node %s: %w", name, err) // it may register in a moment
	}
	own := map[string]bool{name: true}
	for _, a := range node.Status.Addresses {
		own[canonical(a.Address)] = true
	}
	others, err := nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	taken := map[string]string{}
	for _, host := range reserved {
		taken[canonical(host)] = "the API server"
	}
	for _, other := range others {
		if other.Name == name {
			continue
		}
		taken[other.Name] = "node " + other.Name
		for _, a := range other.Status.Addresses {
			taken[canonical(a.Address)] = "node " + other.Name
		}
	}
	hosts := slices.Clone(request.DNSNames)
	for _, ip := range request.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	for _, host := range hosts {
		host = canonical(host)
		if owner := taken[host]; owner != "" {
			return fmt.Errorf("node %s asks for a serving certificate for %s, which is of %s: approve it by hand if that is right", name, host, owner)
		}
		if ip, err := netip.ParseAddr(host); err == nil && (ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast()) {
			return fmt.Errorf("node %s asks for a serving certificate for %s, which other machines have, too", name, host)
		}
		if !own[host] {
			return fmt.Errorf("node %s asks for a serving certificate for %s, which is none of its addresses", name, host)
		}
	}
	return nil
}

// canonical is one spelling for all of an address, or of a name.
func canonical(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().WithZone("").String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// joins says why someone may not get the first certificate of a node, nil if he may. A bootstrap
// token must not open what a node that exists may read.
func joins(request *x509.CertificateRequest, nodes corelisters.NodeLister) error {
	name := strings.TrimPrefix(request.Subject.CommonName, nodeUser)
	_, err := nodes.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("node %s exists: delete it first, or approve the request by hand", name)
}
