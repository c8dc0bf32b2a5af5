package dns

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
)

const (
	// serviceNamespace and serviceName are where every Kubernetes has its DNS.
	serviceNamespace, serviceName = metav1.NamespaceSystem, "kube-dns"
	// proxyLabel keeps proxies, ours and upstream's, from a Service whose address the nodes have
	// themselves. Its value says who routes it instead. A user who removes it takes the Service
	// over.
	proxyLabel, onNode = "service.kubernetes.io/service-proxy-name", "coracle-node"
)

// errReplaced says that the Service kube-dns is a user's, who runs a DNS in pods.
var errReplaced = errors.New("the Service kube-dns is another's")

// errMoved says that the Service kube-dns has another address than this server.
var errMoved = errors.New("delete it, and it is made again")

// ensureService makes the Service by which users see the DNS. It reserves the address, too.
func (s *Server) ensureService(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	services := s.kube.CoreV1().Services(serviceNamespace)
	have, err := services.Get(ctx, serviceName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		have, err = services.Create(ctx, s.service(), metav1.CreateOptions{})
	}
	switch {
	case apierrors.IsForbidden(err): // of a node: another process makes it
		return nil
	case apierrors.IsInvalid(err):
		return fmt.Errorf("make the Service %s/%s: %w; free the address, or choose another with --cluster-dns", serviceNamespace, serviceName,
			err)
	case err != nil:
		return fmt.Errorf("make the Service %s/%s: %w", serviceNamespace, serviceName, err)
	case have.Labels[proxyLabel] != onNode:
		return errReplaced
	case have.Spec.ClusterIP != s.opts.Addresses[0].String():
		return fmt.Errorf("the Service %s/%s has the address %s, not %s: %w",
			serviceNamespace, serviceName, have.Spec.ClusterIP, s.opts.Addresses[0], errMoved)
	}
	return nil
}

// watchService calls changed for events of the Service.
func (s *Server) watchService() error {
	tell := func(obj any) {
		if o, ok := obj.(*corev1.Service); ok && o.Name == serviceName && o.Namespace == serviceNamespace {
			select {
			case s.changed <- struct{}{}:
			default:
			}
		}
	}
	_, err := s.objects.services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: func(_, obj any) { tell(obj) }, DeleteFunc: tell,
	})
	return err
}

// follow returns errReplaced when the Service has become another's, and makes it again when it was
// deleted. If that fails, it is tried again; the DNS goes on working.
func (s *Server) follow(ctx context.Context) error {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-again:
		}
		again = nil
		have := s.objects.service(serviceNamespace, serviceName)
		switch {
		case have == nil:
			err := s.ensureService(ctx)
			if errors.Is(err, errReplaced) || errors.Is(err, errMoved) {
				return err
			}
			if err != nil && ctx.Err() == nil {
				s.opts.Log.Warn("users do not see the Service of the cluster's DNS", "err", err, "again", s.retry)
				again = time.After(s.retry)
			}
		case have.Labels[proxyLabel] != onNode:
			return errReplaced
		}
	}
}

func (s *Server) service() *corev1.Service {
	var ips []string
	for _, addr := range s.opts.Addresses {
		ips = append(ips, addr.String())
	}
	port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: port, TargetPort: intstr.FromInt32(port)}
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: serviceName, Namespace: serviceNamespace,
			Labels: map[string]string{
				"k8s-app": serviceName, "kubernetes.io/cluster-service": "true", proxyLabel: onNode,
			},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: ips[0], ClusterIPs: ips,
			Ports: []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
		},
	}
	if len(ips) > 1 {
		policy := corev1.IPFamilyPolicyRequireDualStack
		service.Spec.IPFamilyPolicy = &policy
	}
	return service
}
