//go:build ha && skew

package controlplanes

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstraptokenv1 "k8s.io/kubernetes/cmd/kubeadm/app/apis/bootstraptoken/v1"
	kubeadminfo "k8s.io/kubernetes/cmd/kubeadm/app/phases/bootstraptoken/clusterinfo"
	kubeadmnode "k8s.io/kubernetes/cmd/kubeadm/app/phases/bootstraptoken/node"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/pki"
)

// hostIP is the address of the test itself on the link that the machines share.
const hostIP = "198.51.100.254"

// TestUpstreamControlPlane has our agent join a control plane of upstream, by what kubeadm makes
// for machines that join.
func TestUpstreamControlPlane(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	two := switched(t, "198.51.100.", "two")[0]
	startRegistry(t)
	two.useRegistry(t)
	upstream, given := startUpstream(ctx, t)
	kube := upstream.admin(t)
	t.Cleanup(func() {
		if _, said, err := two.Run("down"); err != nil {
			t.Errorf("down: %v\n%s", err, said)
		}
	})
	two.Must(t, append([]string{"join", given.Server, "--token", given.Token, "--ca-hash", given.Hashes[0]}, two.flags()...)...)
	u := upstreamNode{machine: two, cluster: upstream, kube: kube, server: given.Server}
	u.startProxy(ctx, t)
	service := newService(ctx, t, kube)
	n, err := kube.CoreV1().Nodes().Get(ctx, two.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web-a", "web-b"} {
		p := runWeb(ctx, t, kube, name, "") // upstream's scheduler finds the node
		_, network, err := net.ParseCIDR(n.Spec.PodCIDR)
		if err != nil || !network.Contains(net.ParseIP(p.Status.PodIP)) {
			t.Errorf("pod %s has the address %s, which is not of the node's range %s", name, p.Status.PodIP, n.Spec.PodCIDR)
		}
	}
	u.checkPods(ctx, t, service, "web-a", "web-b")
	names, err := u.kubectl("exec", "web-b", "--", "cat", "/etc/resolv.conf")
	if err != nil || !strings.Contains(names, "nameserver 10.96.0.10\n") || !strings.Contains(names, "svc.upstream.test") {
		t.Errorf("the pod's name servers are not those of the cluster's kubelets: %v\n%s", err, names)
	}
	two.Must(t, "down")
	two.Must(t, "up", "--timeout", patience.String())
	// Upstream lets no node delete itself.
	two.Refused(t, "an administrator does with 'kubectl delete node two'", "leave")
	two.Must(t, "leave", "--force")
	if out, err := u.kubectl("delete", "node", "two"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// startUpstream starts upstream's control plane in the test's own network, and makes what kubeadm
// makes for machines that join.
func startUpstream(ctx context.Context, t *testing.T) (*machine, discovery.Given) {
	t.Helper()
	dir := t.TempDir()
	server := "https://" + hostIP + ":6443"
	k, err := pki.Ensure(filepath.Join(dir, "pki"), server, []string{hostIP, "kubernetes.default.svc", "10.96.0.1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) {
		(*machine)(nil).run(t, dir, append([]string{filepath.Join(bin("peers"), "bin", name)}, args...)...)
	}
	const etcd, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	run("etcd", "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--log-level", "warn",
		"--unsafe-no-fsync")
	run("kube-apiserver", "--etcd-servers", etcd, "--bind-address", hostIP, "--secure-port", "6443", "--advertise-address", hostIP,
		"--service-cluster-ip-range", "10.96.0.0/16", "--allow-privileged", "--authorization-mode", "Node,RBAC",
		"--enable-admission-plugins", "NodeRestriction", "--enable-bootstrap-token-auth",
		"--client-ca-file", k.CACert, "--tls-cert-file", k.Serving, "--tls-private-key-file", k.Serving,
		"--kubelet-client-certificate", k.KubeletClient, "--kubelet-client-key", k.KubeletClient,
		"--kubelet-preferred-address-types", "InternalIP",
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file", k.ServiceAccountKey, "--service-account-signing-key-file", k.ServiceAccountKey)
	upstream := &machine{dir: dir, ip: hostIP}
	upstream.Name, upstream.Root = "upstream", dir
	admin := must(os.ReadFile(k.AdminKubeconfig))
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), admin, 0o600); err != nil {
		t.Fatal(err)
	}
	kube := upstream.admin(t)
	testkit.Eventually(ctx, t, "upstream's API server is ready", func() (bool, error) {
		err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return err == nil, err
	})
	run("kube-controller-manager", "--kubeconfig", k.AdminKubeconfig, "--leader-elect=false", "--use-service-account-credentials",
		"--controllers", "*,bootstrapsigner,tokencleaner", "--allocate-node-cidrs", "--cluster-cidr", "10.244.0.0/16",
		"--service-account-private-key-file", k.ServiceAccountKey, "--root-ca-file", k.CACert, "--cluster-signing-cert-file", k.CA,
		"--cluster-signing-key-file", k.CA, "--flex-volume-plugin-dir", filepath.Join(dir, "volume-plugins"))
	run("kube-scheduler", "--kubeconfig", k.AdminKubeconfig, "--leader-elect=false")
	return upstream, invite(t, kube, server, must(os.ReadFile(k.CACert)), must(clientcmd.LoadFromFile(k.AdminKubeconfig)))
}

// invite has kubeadm's own code make the roles, cluster-info and a token. The ConfigMap of kubelets
// is what of it counts for other kubelets.
func invite(t *testing.T, kube kubernetes.Interface, server string, ca []byte, admin *clientcmdapi.Config) discovery.Given {
	t.Helper()
	const tokenID, secret = "abcdef", "0123456789abcdef"
	token := bootstraptokenv1.BootstrapToken{
		Token:  &bootstraptokenv1.BootstrapTokenString{ID: tokenID, Secret: secret},
		Usages: []string{"signing", "authentication"}, Groups: []string{"system:bootstrappers:kubeadm:default-node-token"},
	}
	kubelets, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"clusterDNS": []string{"10.96.0.10"}, "clusterDomain": "upstream.test",
	})
	for _, err := range []error{
		err,
		kubeadmnode.CreateNewTokens(kube, []bootstraptokenv1.BootstrapToken{token}),
		kubeadmnode.AllowBootstrapTokensToPostCSRs(kube), kubeadmnode.AllowBootstrapTokensToGetNodes(kube),
		kubeadmnode.AutoApproveNodeBootstrapTokens(kube), kubeadmnode.AutoApproveNodeCertificateRotation(kube),
		kubeadminfo.CreateBootstrapConfigMapIfNotExists(kube, admin), kubeadminfo.CreateClusterInfoRBACRules(kube),
		publishKubeletConfig(t.Context(), kube, string(kubelets)), clusterinfo.AwaitSigned(t.Context(), kube, tokenID),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	hash, err := discovery.Hash(ca)
	if err != nil {
		t.Fatal(err)
	}
	return discovery.Given{Server: server, Token: tokenID + "." + secret, Hashes: []string{hash}}
}

// publishKubeletConfig makes the ConfigMap and the role of kubeadm's phase upload-config kubelet.
func publishKubeletConfig(ctx context.Context, kube kubernetes.Interface, text string) error {
	const name, role = "kubelet-config", "kubeadm:kubelet-config"
	meta := metav1.ObjectMeta{Name: role, Namespace: metav1.NamespaceSystem}
	_, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"kubelet": text},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = kube.RbacV1().Roles(metav1.NamespaceSystem).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{name}, Verbs: []string{"get"},
		}}}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = kube.RbacV1().RoleBindings(metav1.NamespaceSystem).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
			Subjects: []rbacv1.Subject{
				{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"},
				{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:bootstrappers:kubeadm:default-node-token"},
			},
		}, metav1.CreateOptions{})
	}
	return err
}
