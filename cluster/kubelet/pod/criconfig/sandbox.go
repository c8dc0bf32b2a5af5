package criconfig

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/node/util/sysctl"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	runtimeutil "k8s.io/kubernetes/pkg/kubelet/kuberuntime/util"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// Sandbox is the pod as CRI wants it. It is given with the sandbox and each container.
func (m *Maker) Sandbox(ctx context.Context, pod *v1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	dns, err := m.DNS.GetPodDNS(ctx, pod)
	if err != nil {
		return nil, err
	}
	c := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Labels:       cri.SandboxLabels(pod),
		Annotations:  pod.Annotations,
		DnsConfig:    dns,
		LogDirectory: m.Logs.Pod(pod),
	}
	if !pod.Spec.HostNetwork {
		name, domain, err := m.hostname(pod, m.ClusterDomain)
		if err != nil {
			return nil, err
		}
		if c.Hostname, err = kernelHostname(pod, name, domain); err != nil {
			return nil, err
		}
	}
	for i := range pod.Spec.Containers {
		for _, p := range kubecontainer.MakePortMappings(klog.Background(), &pod.Spec.Containers[i]) {
			c.PortMappings = append(c.PortMappings, &runtimeapi.PortMapping{
				HostIp: p.HostIP, HostPort: int32(p.HostPort), ContainerPort: int32(p.ContainerPort), Protocol: protocol(p.Protocol),
			})
		}
	}
	security, err := m.sandboxSecurity(pod)
	if err != nil {
		return nil, err
	}
	c.Linux = &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    m.Cgroups.Parent(pod),
		SecurityContext: security,
		Sysctls:         map[string]string{},
		Resources:       podResources(pod),
		Overhead:        overhead(pod),
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			c.Linux.Sysctls[sysctl.NormalizeName(s.Name)] = s.Value
		}
	}
	return c, nil
}

func (m *Maker) sandboxSecurity(pod *v1.Pod) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	namespaces, err := m.namespaces(pod)
	if err != nil {
		return nil, err
	}
	s := &runtimeapi.LinuxSandboxSecurityContext{
		Privileged:       kubecontainer.HasPrivilegedContainer(pod),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		NamespaceOptions: namespaces,
	}
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return s, nil
	}
	if sc.RunAsUser != nil {
		s.RunAsUser = &runtimeapi.Int64Value{Value: *sc.RunAsUser}
	}
	if sc.RunAsGroup != nil {
		s.RunAsGroup = &runtimeapi.Int64Value{Value: *sc.RunAsGroup}
	}
	if s.SupplementalGroups, s.SupplementalGroupsPolicy, err = groups(sc); err != nil {
		return nil, err
	}
	s.SelinuxOptions = selinux(sc.SELinuxOptions)
	return s, nil
}

// namespaces says which namespaces of the pod's containers are the node's, the pod's or their own.
func (m *Maker) namespaces(pod *v1.Pod) (*runtimeapi.NamespaceOption, error) {
	users, err := m.Users.Of(pod)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.NamespaceOption{
		Ipc:           runtimeutil.IpcNamespaceForPod(pod),
		Network:       runtimeutil.NetworkNamespaceForPod(pod),
		Pid:           runtimeutil.PidNamespaceForPod(pod),
		UsernsOptions: users,
	}, nil
}

func protocol(p v1.Protocol) runtimeapi.Protocol {
	switch p {
	case v1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case v1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	default:
		return runtimeapi.Protocol_TCP
	}
}

// A host name has at most 63 bytes, what the kernel calls the host at most 64.
const (
	longestHostname = 63
	longestNodename = 64
)

// hostname returns the pod's host name and the domain it is in, if any.
func (m *Maker) hostname(pod *v1.Pod, clusterDomain string) (name, domain string, err error) {
	if o := pod.Spec.HostnameOverride; o != nil {
		if msgs := validation.IsDNS1123Subdomain(*o); len(msgs) != 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *o, strings.Join(msgs, ";"))
		}
		name, err = m.cutHostname(pod, *o)
		return name, "", err
	}
	name = pod.Name
	if h := pod.Spec.Hostname; h != "" {
		if msgs := validation.IsDNS1123Label(h); len(msgs) != 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", h, strings.Join(msgs, ";"))
		}
		name = h
	}
	if name, err = m.cutHostname(pod, name); err != nil {
		return "", "", err
	}
	if s := pod.Spec.Subdomain; s != "" {
		if msgs := validation.IsDNS1123Label(s); len(msgs) != 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", s, strings.Join(msgs, ";"))
		}
		domain = fmt.Sprintf("%s.%s.svc.%s", s, pod.Namespace, clusterDomain)
	}
	return name, domain, nil
}

func (m *Maker) cutHostname(pod *v1.Pod, name string) (string, error) {
	if len(name) <= longestHostname {
		return name, nil
	}
	cut := strings.TrimRight(name[:longestHostname], "-.")
	if cut == "" {
		return "", fmt.Errorf("hostname for pod %q was invalid: %q", pod.Name, name)
	}
	m.Log.Warn("pod's host name is too long and was cut", "pod", pod.Name, "hostname", cut)
	return cut, nil
}

// kernelHostname is what uname says in the pod.
func kernelHostname(pod *v1.Pod, name, domain string) (string, error) {
	if full := pod.Spec.SetHostnameAsFQDN; domain == "" || full == nil || !*full {
		return name, nil
	}
	fqdn := name + "." + domain
	if len(fqdn) > longestNodename {
		return "",
			fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d "+
				"characters requested)",
				fqdn, longestNodename, len(fqdn))
	}
	return fqdn, nil
}
