package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	sample "k8s.io/sample-apiserver/pkg/cmd/server"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
)

// sampleVariable has the test's program be upstream's sample API server: what it needs to know of
// the process is global.
const sampleVariable = "CORACLE_TEST_SAMPLE_APISERVER"

// runSampleServer is upstream's main, but for the listener, which it is given.
func runSampleServer() int {
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	options := sample.NewWardleServerOptions(os.Stdout, os.Stderr)
	options.RecommendedOptions.SecureServing.Listener = listener
	cmd := sample.NewCommandStartWardleServer(genericapiserver.SetupSignalContext(), options, false)
	cmd.SetArgs(os.Args[1:])
	if err := cmd.Execute(); err != nil {
		return 1
	}
	return 0
}

// startSampleServer runs it with the rights of a service account, and returns its port and
// authority.
func startSampleServer(t *testing.T, gv schema.GroupVersion) (port int32, ca []byte) {
	t.Helper()
	dir := t.TempDir()
	pair, ca := selfSigned(t, serviceName(gv)+".default.svc")
	certFile, keyFile, kubeconfig := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "kubeconfig")
	writeFile(t, certFile, string(ca))
	writeFile(t, keyFile, string(keyPEM(t, pair)))
	writeFile(t, kubeconfig, string(accountKubeconfig(t)))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	port = portOf(t, listener.Addr().String())
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(os.Args[0],
		"--etcd-servers", "unix://"+etcd.Socket(server.options.State), "--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port),
		"--tls-cert-file", certFile, "--tls-private-key-file", keyFile,
		"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig)
	cmd.Env, cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = append(os.Environ(), sampleVariable+"=1"), []*os.File{file}, log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("the sample API server said:\n%s", said)
		}
	})
	return port, ca
}

// accountKubeconfig is of a service account with the rights that an extension server needs.
func accountKubeconfig(t *testing.T) []byte {
	t.Helper()
	client, ctx := admin(t), t.Context()
	if _, err := client.CoreV1().ServiceAccounts("default").Create(ctx, serviceAccount("wardle"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	who := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "wardle"}}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	_, err := client.RbacV1().RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "wardle"}, RoleRef: ref("Role", "extension-apiserver-authentication-reader"), Subjects: who,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reads := []string{"get", "list", "watch"}
	if _, err := client.RbacV1().ClusterRoles().Create(ctx,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "wardle"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: reads},
			{APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"*"}, Verbs: reads},
			{APIGroups: []string{"flowcontrol.apiserver.k8s.io"}, Resources: []string{"*"}, Verbs: reads},
		}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for binding, role := range map[string]string{"wardle": "wardle", "wardle-auth": "system:auth-delegator"} {
		if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: binding}, RoleRef: ref("ClusterRole", role), Subjects: who,
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(ctx, "wardle", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	over := overTLS(t)
	config := clientcmdapi.NewConfig()
	config.Clusters["a"] = &clientcmdapi.Cluster{Server: over.Host, CertificateAuthorityData: over.CAData}
	config.AuthInfos["a"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["a"] = &clientcmdapi.Context{Cluster: "a", AuthInfo: "a"}
	config.CurrentContext = "a"
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestUpstreamsSampleAPIServer runs k8s.io/sample-apiserver unchanged: it believes the front proxy
// by what it reads in kube-system, and asks this server about tokens and rights.
func TestUpstreamsSampleAPIServer(t *testing.T) {
	gv := schema.GroupVersion{Group: "wardle.example.com", Version: "v1alpha1"}
	port, ca := startSampleServer(t, gv)
	elsewhere(t, server, gv, port, ca)
	becomes(t, server, "v1alpha1.wardle.example.com", "Passed")
	client := admin(t)
	ns := namespace(t, client)
	anything, err := dynamic.NewForConfig(overTLS(t))
	if err != nil {
		t.Fatal(err)
	}
	flunders := anything.Resource(gv.WithResource("flunders")).Namespace(ns)
	watching, err := flunders.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	flunder := func(reference string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": gv.String(), "kind": "Flunder", "metadata": map[string]any{"name": "one"},
			"spec": map[string]any{"reference": reference, "referenceType": "Flunder"},
		}}
	}
	eventually(t, "its admission is ready", func() (bool, error) {
		_, err := flunders.Create(t.Context(), flunder("a"), metav1.CreateOptions{})
		return err == nil, err
	})
	if e := <-watching.ResultChan(); e.Object.(*unstructured.Unstructured).GetName() != "one" {
		t.Errorf("%+v", e)
	}
	if _, err := flunders.Patch(t.Context(), "one", "application/merge-patch+json", []byte(`{"spec":{"reference":"b"}}`),
		metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	if list, err := flunders.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := flunders.Apply(t.Context(), "two", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gv.String(), "kind": "Flunder", "metadata": map[string]any{"name": "two"},
		"spec": map[string]any{"reference": "c", "referenceType": "Flunder"},
	}}, metav1.ApplyOptions{FieldManager: "test"}); err != nil {
		t.Errorf("apply: %v", err)
	}
	eventually(t, "aggregated discovery has it", func() (bool, error) {
		_, lists, err := client.Discovery().ServerGroupsAndResources()
		for _, l := range lists {
			if l.GroupVersion == gv.String() {
				return len(l.APIResources) >= 2, err
			}
		}
		return false, err
	})
	if resp, body := get(t, true, "/openapi/v3/apis/"+gv.String(), "Accept", "application/json"); resp.StatusCode != http.StatusOK ||
		!strings.Contains(string(body), "FlunderSpec") {
		t.Errorf("OpenAPI v3: %d %.200s", resp.StatusCode, body)
	}

	t.Run("rights", func(t *testing.T) {
		made, err := client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		path := "/apis/" + gv.String() + "/namespaces/" + ns + "/flunders"
		if resp, body := as(t, server, made.Status.Token, path); resp.StatusCode != http.StatusForbidden {
			t.Errorf("without a role: %d %s", resp.StatusCode, body)
		}
		// Asked directly, the other server asks this one who that is, and what it may do.
		direct := insecureClient(t)
		for token, want := range map[string]int{
			made.Status.Token: http.StatusForbidden, "nonsense": http.StatusUnauthorized,
			adminAccount(t): http.StatusOK,
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://localhost:%d%s", port, path), nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("X-Remote-User", "root") // without the front proxy's certificate it says nothing
			req.Header.Set("X-Remote-Group", "system:masters")
			resp, err := direct.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("directly: %d, want %d", resp.StatusCode, want)
			}
		}
	})
	if err := flunders.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := flunders.Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after its deletion: %v", err)
	}
}

// adminAccount returns the token of a service account that may do everything.
func adminAccount(t *testing.T) string {
	t.Helper()
	client := admin(t)
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), serviceAccount("captain"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "captain"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "captain"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.RbacV1().ClusterRoleBindings().Delete(context.Background(), "captain", metav1.DeleteOptions{})
	})
	waitSeen(t, server.Informers().Rbac().V1().ClusterRoleBindings().Informer(), func(obj any) bool {
		return obj.(*rbacv1.ClusterRoleBinding).UID == bound.UID
	})
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "captain", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

// insecureClient does not check which server answers.
func insecureClient(t *testing.T) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func keyPEM(t *testing.T, pair tls.Certificate) []byte {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(pair.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}
