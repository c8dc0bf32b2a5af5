// Package certificates carries out CertificateSigningRequests: it approves those with which a node
// asks for its own certificates, signs those that are approved, and deletes old ones.
//
// Three controllers over one informer, each with Requests as keys. What a request must look like
// for a signer, and the signing itself, are upstream's rules (imported). A request that a signer
// cannot accept gets the condition Failed. A request for another signer is left alone. After any
// other error the request is tried again, with the frame's back-off.
package certificates

import (
	"context"
	"crypto/x509"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/apis/certificates"
	conditions "k8s.io/kubernetes/pkg/controller/certificates"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

type approver struct {
	set      *client.Set
	reader   kubernetes.Interface
	requests certificateslisters.CertificateSigningRequestLister
	nodes    corelisters.NodeLister
	networks networkinglisters.ServiceCIDRLister
	servers  discoverylisters.EndpointSliceNamespaceLister
	events   record.EventRecorder
	reserved Reserved
}

// NewApprover returns the controller that approves nodes' requests for a client certificate of
// their own, those that someone may make for new nodes, as a SubjectAccessReview says, and nodes'
// requests to serve under their own names and addresses. It lists Nodes with reader: its own role
// does not read them.
func NewApprover(set *client.Set, reader kubernetes.Interface, reserved Reserved) *frame.Controller {
	requests, nodes := set.Informers.Certificates().V1().CertificateSigningRequests(), set.Informers.Core().V1().Nodes()
	networks, endpoints := set.Informers.Networking().V1().ServiceCIDRs(), set.Informers.Discovery().V1().EndpointSlices()
	events, flush := set.Recorder("csr-approving", "")
	a := &approver{
		set: set, reader: reader, requests: requests.Lister(), nodes: nodes.Lister(), networks: networks.Lister(),
		servers: endpoints.Lister().EndpointSlices(metav1.NamespaceDefault), events: events, reserved: reserved,
	}
	f := frame.New("csr-approving", 1, set.Logger(), a.sync)
	f.Watch(requests.Informer(), frame.Self)
	none := func(any) []string { return nil } // wait for what exists
	f.Watch(nodes.Informer(), none)
	f.Watch(networks.Informer(), none)
	f.Watch(endpoints.Informer(), none)
	f.Also(func(ctx context.Context) { <-ctx.Done(); flush() })
	return f
}

// recognized are the requests that can be approved without a person: the subresource on which
// the requester must have the right to "create", and the message of the approval.
var recognized = []struct {
	subresource, message string
	is                   func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest) bool
}{
	{
		"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.",
		func(csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) bool {
			return csr.Spec.Username == request.Subject.CommonName && isNodeClient(csr, request)
		},
	},
	{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.", isNodeClient},
}

func isNodeClient(csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) bool {
	return csr.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName &&
		certificates.IsKubeletClientCSR(request, usages(csr))
}

//lint:ignore SA1019 upstream's rules take this type
func usages(csr *certificatesv1.CertificateSigningRequest) sets.String {
	set := sets.NewString()
	for _, usage := range csr.Spec.Usages {
		set.Insert(string(usage))
	}
	return set
}

func (a *approver) sync(ctx context.Context, name string) error {
	csr, err := a.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	approved, denied := conditions.GetCertApprovalCondition(&csr.Status)
	if len(csr.Status.Certificate) > 0 || approved || denied {
		return nil
	}
	request, err := certificates.ParseCSR(csr.Spec.Request)
	if err != nil {
		return fmt.Errorf("certificate signing request %s: %w", name, err)
	}
	if len(a.reserved.Hosts) > 0 && isNodeServing(csr, request) {
		if err := a.servable(request); err != nil {
			return fmt.Errorf("certificate signing request %s: %w", name, err)
		}
		return a.decide(ctx, csr, certificatesv1.CertificateApproved, autoApproved,
			"Auto approving kubelet serving certificate for the node's own addresses.")
	}
	var tried []string
	for _, kind := range recognized {
		if !kind.is(csr, request) {
			continue
		}
		allowed, err := a.allowed(ctx, csr, kind.subresource)
		if err != nil {
			return err
		}
		if !allowed {
			tried = append(tried, kind.subresource)
			continue
		}
		if csr.Spec.Username != request.Subject.CommonName {
			exists, err := a.exists(ctx, request)
			if err != nil {
				return fmt.Errorf("certificate signing request %s of %s: %w", name, csr.Spec.Username, err)
			}
			if exists { // a request that waits would be approved when the Node is deleted, perhaps without a token by then
				return a.decide(ctx, csr, certificatesv1.CertificateDenied, "NodeExists",
					"A node of that name exists. Delete it first, or choose another name, and ask again.")
			}
		}
		return a.decide(ctx, csr, certificatesv1.CertificateApproved, autoApproved, kind.message)
	}
	if len(tried) > 0 { // the right may be given later
		return fmt.Errorf("certificate signing request %s: %s may not have it approved (create %v)", name, csr.Spec.Username, tried)
	}
	return nil
}

const autoApproved = "AutoApproved"

// decide approves or denies a request.
func (a *approver) decide(ctx context.Context, csr *certificatesv1.CertificateSigningRequest,
	condition certificatesv1.RequestConditionType, reason, message string,
) error {
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: condition, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
	_, err := a.set.Kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
	return ignoreNotFound(err)
}

// allowed asks whether the requester may have such requests approved.
func (a *approver) allowed(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, subresource string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, value := range csr.Spec.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	review, err := a.set.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: csr.Spec.Username, UID: csr.Spec.UID, Groups: csr.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: "certificates.k8s.io", Version: "*", Resource: "certificatesigningrequests", Subresource: subresource, Verb: "create",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
