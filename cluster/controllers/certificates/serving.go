package certificates

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kubernetes/pkg/apis/certificates"

	"github.com/coracle-project/coracle/cluster/loadbalancer"
)

const nodeUser = "system:node:"

// isNodeServing says whether a node asks for a serving certificate of its own.
func isNodeServing(csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) bool {
	return csr.Spec.SignerName == certificatesv1.KubeletServingSignerName &&
		certificates.IsKubeletServingCSR(request, usages(csr)) &&
		csr.Spec.Username == request.Subject.CommonName && slices.Contains(csr.Spec.Groups, "system:nodes")
}

// Reserved are names and addresses that no node may serve under. The authority of nodes' serving
// certificates also signs the API server's.
type Reserved struct {
	// Hosts are the names of API servers and the addresses of this one; others publish theirs as
	// endpoints of the Service kubernetes. If there are none, no serving certificate is approved.
	Hosts []string
	// Domain is the cluster's domain, under which Services and pods have names.
	Domain string
	// Pods are the networks of pods, and LoadBalancers the addresses of Services of type
	// LoadBalancer.
	Pods          []netip.Prefix
	LoadBalancers loadbalancer.Pool
}

// servable says why a node may not serve under the names and addresses of its request, nil if it
// may. The operator who joins a node chooses its name, and nodes report their own addresses. A node
// must not get a certificate with which it could pose as the API server, a Service or another node:
// it gets only its own name, and only addresses that nothing else has.
func (a *approver) servable(request *x509.CertificateRequest) error {
	name := strings.TrimPrefix(request.Subject.CommonName, nodeUser)
	node, err := a.nodes.Get(name)
	if err != nil {
		return fmt.Errorf("node %s: %w", name, err) // it may register in a moment
	}
	refused := func(host, why string) error {
		return fmt.Errorf("node %s asks for a serving certificate for %s, %s", name, host, why)
	}
	var addresses []netip.Addr
	for _, ip := range request.IPAddresses {
		address, ok := netip.AddrFromSlice(ip)
		if !ok {
			return refused(ip.String(), "which is no address")
		}
		addresses = append(addresses, address.Unmap())
	}
	for _, host := range request.DNSNames {
		if address, err := netip.ParseAddr(host); err == nil { // some clients take it for an address
			addresses = append(addresses, address.Unmap())
			continue
		}
		switch host = canonical(host); {
		case host != name:
			return refused(host, "which is not its name")
		case a.reserved.hasName(host):
			return refused(host, "which is a name of the API server or of Services: join the machine with another --node-name")
		}
	}
	for _, address := range addresses {
		switch {
		case slices.ContainsFunc(a.reserved.Hosts, func(host string) bool { return canonical(host) == address.String() }):
			return refused(address.String(), "which is the API server's")
		case !address.IsGlobalUnicast():
			return refused(address.String(), "which other machines have, too")
		case slices.ContainsFunc(a.reserved.Pods, func(p netip.Prefix) bool { return p.Contains(address) }):
			return refused(address.String(), "which is in the network of pods")
		case a.reserved.LoadBalancers.Contains(address):
			return refused(address.String(), "which is for Services of type LoadBalancer")
		case !has(node, address):
			return refused(address.String(), "which it does not report")
		}
		if err := a.unused(node, address); err != nil {
			return refused(address.String(), err.Error())
		}
	}
	return nil
}

// hasName says whether a name is the API server's, a Service's or a pod's.
func (r Reserved) hasName(name string) bool {
	under := func(domain string) bool { return name == domain || strings.HasSuffix(name, "."+domain) }
	return under("svc") || r.Domain != "" && under(canonical(r.Domain)) ||
		slices.ContainsFunc(r.Hosts, func(host string) bool { return canonical(host) == name })
}

// unused says what else has an address of node, nil if nothing has.
func (a *approver) unused(node *corev1.Node, address netip.Addr) error {
	networks, err := a.networks.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, network := range networks {
		for _, text := range network.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil && prefix.Contains(address) {
				return fmt.Errorf("which is in the network of Services %s", prefix)
			}
		}
	}
	published, err := a.servers.List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: "kubernetes"}))
	if err != nil {
		return err
	}
	for _, of := range published {
		for _, server := range of.Endpoints {
			if slices.ContainsFunc(server.Addresses, func(text string) bool { return canonical(text) == address.String() }) {
				return errors.New("which is an API server's")
			}
		}
	}
	nodes, err := a.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, other := range nodes {
		if other.Name != node.Name && has(other, address) {
			// Which of them says the truth is not known. An operator has to decide.
			a.events.Eventf(node, corev1.EventTypeWarning, "ServingCertificateConflict",
				"No serving certificate for %s: node %s reports that address, too", address, other.Name)
			return fmt.Errorf("which node %s reports, too: approve it by hand if that is right", other.Name)
		}
	}
	return nil
}

// has says whether a node reports an address.
func has(node *corev1.Node, address netip.Addr) bool {
	return slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return canonical(a.Address) == address.String() })
}

// canonical is one spelling for all of an address, or of a name.
func canonical(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().WithZone("").String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// exists says whether there is a Node of the request's name. A bootstrap token must not open what a
// node that exists may read. The API is asked: the informer may not have seen a new Node yet.
func (a *approver) exists(ctx context.Context, request *x509.CertificateRequest) (bool, error) {
	name := strings.TrimPrefix(request.Subject.CommonName, nodeUser)
	list, err := a.reader.CoreV1().Nodes().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
	})
	if err != nil {
		return false, fmt.Errorf("look for node %s: %w", name, err)
	}
	return slices.ContainsFunc(list.Items, func(n corev1.Node) bool { return n.Name == name }), nil
}
