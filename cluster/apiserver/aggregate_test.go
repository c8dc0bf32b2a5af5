package apiserver

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"
)

// selfSigned returns a certificate for host, and its PEM.
func selfSigned(t *testing.T, host string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{host}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func portOf(t *testing.T, at string) int32 {
	t.Helper()
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

func registrationsOf(t *testing.T, s *Server) *clientset.Clientset {
	t.Helper()
	c, err := clientset.NewForConfig(s.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// elsewhere has a server at a port of loopback serve a group and version of s. Its name is that of
// the group's first part, and its Service's.
func elsewhere(t *testing.T, s *Server, gv schema.GroupVersion, port int32, caBundle []byte) *apiregistrationv1.APIService {
	t.Helper()
	name := serviceName(gv)
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	// Endpoints may not be on loopback.
	_, err := client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return register(t, s, gv, func(a *apiregistrationv1.APIService) {
		a.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "default", Name: name, Port: ptr.To(port)}
		a.Spec.CABundle = caBundle
	})
}

func serviceName(gv schema.GroupVersion) string { return strings.Split(gv.Group, ".")[0] }

func register(t *testing.T, s *Server, gv schema.GroupVersion, change func(*apiregistrationv1.APIService)) *apiregistrationv1.APIService {
	t.Helper()
	a := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec:       apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: 500, VersionPriority: 10},
	}
	change(a)
	all := registrationsOf(t, s).ApiregistrationV1().APIServices()
	made, err := all.Create(t.Context(), a, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = all.Delete(context.Background(), a.Name, metav1.DeleteOptions{}) })
	return made
}

// becomes waits until an APIService has this reason for being available or not, and, if its server
// is available, until the API server has seen that and passes requests on. It returns the
// condition.
func becomes(t *testing.T, s *Server, name, reason string) (found apiregistrationv1.APIServiceCondition) {
	t.Helper()
	all := registrationsOf(t, s).ApiregistrationV1().APIServices()
	eventually(t, name+" becomes "+reason, func() (bool, error) {
		a, err := all.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range a.Status.Conditions {
			if c.Type == apiregistrationv1.Available {
				found = c
			}
		}
		return found.Reason == reason, fmt.Errorf("%+v", found)
	})
	if found.Status == apiregistrationv1.ConditionTrue && reason != "Local" {
		version, group, _ := strings.Cut(name, ".")
		client := clientOf(t, s.ClientConfig("admin", "system:masters"))
		eventually(t, "requests for "+name+" are passed on", func() (bool, error) {
			documents, err := client.Discovery().OpenAPIV3().Paths()
			return documents["apis/"+group+"/"+version] != nil, err
		})
	}
	return found
}

// shipServer serves ships: what a real extension server does, as far as it matters. It believes a
// client that has the front proxy's certificate about the user.
type shipServer struct {
	gv       schema.GroupVersion
	port     int32
	ca       []byte
	mu       sync.Mutex
	requests []*http.Request
}

func newShipServer(t *testing.T, s *Server, gv schema.GroupVersion, also http.HandlerFunc) *shipServer {
	t.Helper()
	ship := &shipServer{gv: gv}
	pair, ca := selfSigned(t, serviceName(gv)+".default.svc")
	front, err := os.ReadFile(s.options.PKI.FrontProxyCACert)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(front)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ship.mu.Lock()
		ship.requests = append(ship.requests, r.Clone(context.Background()))
		ship.mu.Unlock()
		path := "/apis/" + gv.String()
		switch {
		case also != nil && r.URL.Path != path && r.URL.Path != "/apis":
			also(w, r)
		case r.URL.Path == path:
			writeJSON(w, metav1.APIResourceList{
				TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String(),
				APIResources: []metav1.APIResource{{Name: "ships", SingularName: "ship", Kind: "Ship", Verbs: metav1.Verbs{"get", "list", "watch"}}},
			})
		case r.URL.Path == path+"/ships":
			writeJSON(w, map[string]any{"kind": "ShipList", "apiVersion": gv.String(), "items": []any{}})
		default:
			http.NotFound(w, r)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	ship.port, ship.ca = portOf(t, server.Listener.Addr().String()), ca
	return ship
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// last returns the last request to a path, nil if there was none.
func (s *shipServer) last(path string) (found *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if r.URL.Path == path {
			found = r
		}
	}
	return found
}

// as asks s over TLS with a token of a service account, and further headers in pairs.
func as(t *testing.T, s *Server, token, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	config := rest.AnonymousClientConfig(overTLSOf(t, s))
	config.BearerToken = token
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, body := answerTo(t, client, req)
	return resp, string(body)
}

// adminToken is an administrator's token that works over TLS.
func adminToken(s *Server) string { return s.inside.token("admin", []string{"system:masters"}) }

func TestAnotherServersAPI(t *testing.T) {
	gv := schema.GroupVersion{Group: "harbour.example.com", Version: "v1"}
	ships := newShipServer(t, server, gv, nil)
	elsewhere(t, server, gv, ships.port, ships.ca)
	if c := becomes(t, server, "v1.harbour.example.com", "Passed"); c.Status != apiregistrationv1.ConditionTrue ||
		c.Message != "all checks passed" {
		t.Errorf("%+v", c)
	}
	client := clientOf(t, overTLS(t))
	eventually(t, "the resources are in discovery", func() (bool, error) {
		list, err := client.Discovery().ServerResourcesForGroupVersion(gv.String())
		return err == nil && len(list.APIResources) == 1 && list.APIResources[0].Kind == "Ship", err
	})
	eventually(t, "aggregated discovery is current", func() (bool, error) {
		_, lists, err := client.Discovery().ServerGroupsAndResources()
		for _, l := range lists {
			if l.GroupVersion == gv.String() {
				return err == nil && len(l.APIResources) == 1, err
			}
		}
		return false, err
	})
	for path, want := range map[string]string{
		"/apis":                     `"groupVersion":"harbour.example.com/v1"`,
		"/apis/harbour.example.com": `"kind":"APIGroup"`,
	} {
		if resp, body := get(t, true, path, "Accept", "application/json"); resp.StatusCode != http.StatusOK ||
			!strings.Contains(string(body), want) {
			t.Errorf("%s: %d %.300s", path, resp.StatusCode, body)
		}
	}

	t.Run("who asks", func(t *testing.T) {
		const path = "/apis/harbour.example.com/v1/ships"
		token := server.inside.token("jane", []string{"sailors"})
		if resp, body := as(t, server, token, path); resp.StatusCode != http.StatusForbidden || ships.last(path) != nil {
			t.Fatalf("without a role: %d %s, asked %v", resp.StatusCode, body, ships.last(path))
		}
		c := admin(t)
		role, err := c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "ships"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{gv.Group}, Resources: []string{"ships"}, Verbs: []string{"list"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		bound, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "ships"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "ships"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		roles := server.Informers().Rbac().V1()
		waitSeen(t, roles.ClusterRoles().Informer(), func(obj any) bool { return obj.(*rbacv1.ClusterRole).UID == role.UID })
		waitSeen(t, roles.ClusterRoleBindings().Informer(), func(obj any) bool { return obj.(*rbacv1.ClusterRoleBinding).UID == bound.UID })

		forged := []string{
			"X-Remote-User", "root", "X-Remote-Uid", "0", "X-Remote-Group", "system:masters", "X-Remote-Extra-Scopes", "all",
			"x-remote-group", "wheel",
		}
		// A proxy that knows nothing of these headers hands them on.
		seen := make(chan http.Header, 1)
		plain := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }))
		defer plain.Close()
		to, _ := url.Parse(plain.URL)
		req := httptest.NewRequest(http.MethodGet, path, nil)
		for i := 0; i < len(forged); i += 2 {
			req.Header.Add(forged[i], forged[i+1])
		}
		httputil.NewSingleHostReverseProxy(to).ServeHTTP(httptest.NewRecorder(), req)
		if h := <-seen; h.Get("X-Remote-User") != "root" || h.Get("X-Remote-Group") != "system:masters" {
			t.Fatalf("the attack does not work anywhere: %v", h)
		}

		resp, body := as(t, server, token, path, forged...)
		if resp.StatusCode != http.StatusOK || !strings.Contains(body, "ShipList") {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
		h := ships.last(path).Header
		if h.Get("X-Remote-User") != "jane" || strings.Join(h.Values("X-Remote-Group"), ",") != "sailors,system:authenticated" ||
			h.Get("X-Remote-Uid") != "" ||
			h.Get("X-Remote-Extra-Scopes") != "" || h.Get("Authorization") != "" {
			t.Errorf("the server was told %v", h)
		}
		// The server believes only the front proxy.
		direct := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		if _, err := direct.Get(fmt.Sprintf("https://localhost:%d%s", ships.port, path)); err == nil {
			t.Error("the server answers without the front proxy's certificate")
		}
	})

	t.Run("it goes", func(t *testing.T) {
		if err := registrationsOf(t, server).ApiregistrationV1().APIServices().Delete(t.Context(), "v1.harbour.example.com",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the group is gone", func() (bool, error) {
			_, body := get(t, true, "/apis", "Accept", "application/json")
			resp, _ := get(t, true, "/apis/harbour.example.com/v1")
			return !strings.Contains(string(body), gv.Group) && resp.StatusCode == http.StatusNotFound, nil
		})
	})
}

// Watches and upgraded connections reach the other server, and what it sends arrives while it is
// sent.
func TestStreamsOfAnotherServer(t *testing.T) {
	gv := schema.GroupVersion{Group: "stream.example.com", Version: "v1"}
	more := make(chan struct{})
	ships := newShipServer(t, server, gv, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "test")
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			line, _ := buffered.ReadString('\n')
			_, _ = io.WriteString(conn, r.Header.Get("X-Remote-User")+" says "+line)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		for n := range 2 {
			fmt.Fprintf(w, `{"type":"ADDED","object":{"kind":"Ship","apiVersion":%q,"metadata":{"name":"s%d"}}}`+"\n", gv, n)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-more:
			case <-r.Context().Done():
				return
			}
		}
	})
	elsewhere(t, server, gv, ships.port, ships.ca)
	becomes(t, server, "v1.stream.example.com", "Passed")

	config := overTLS(t)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	watching, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+"/apis/stream.example.com/v1/ships?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(watching)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for n := range 2 {
		line, err := lines.ReadString('\n')
		if err != nil || !strings.Contains(line, fmt.Sprintf(`"s%d"`, n)) {
			t.Fatalf("event %d: %q, %v", n, line, err)
		}
		more <- struct{}{}
	}

	files, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	files.NextProtos = []string{"http/1.1"}
	conn, err := (&tls.Dialer{Config: files}).DialContext(t.Context(), "tcp", strings.TrimPrefix(config.Host, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn,
		"GET /apis/stream.example.com/v1/ships/a/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: test\r\nX-Remote-User: "+
			"root\r\n\r\n")
	answer := bufio.NewReader(conn)
	upgraded, err := http.ReadResponse(answer, nil)
	if err != nil || upgraded.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", upgraded, err)
	}
	fmt.Fprintf(conn, "ahoy\n")
	if line, err := answer.ReadString('\n'); err != nil || line != "kubernetes-admin says ahoy\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// A server of users takes the place of what is served in this process, and gives it back when it
// goes.
func TestAMetricsServerOfUsers(t *testing.T) {
	gv := schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}
	ask := func() string {
		_, body := get(t, true, "/apis/metrics.k8s.io/v1beta1/nodes", "Accept", "application/json")
		return string(body)
	}
	if body := ask(); !strings.Contains(body, "NodeMetricsList") {
		t.Fatalf("before: %s", body)
	}
	theirs := newShipServer(t, server, gv, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "theirs") })
	elsewhere(t, server, gv, theirs.port, theirs.ca)
	becomes(t, server, "v1beta1.metrics.k8s.io", "Passed")
	eventually(t, "theirs answers", func() (bool, error) { return ask() == "theirs", nil })
	if _, body := get(t, true, "/openapi/v3/apis/metrics.k8s.io/v1beta1"); string(body) != "theirs" {
		t.Errorf("OpenAPI v3: %.100s", body)
	}
	if _, body := get(t, true, "/openapi/v3"); !strings.Contains(string(body),
		`"apis/metrics.k8s.io/v1beta1":{"serverRelativeURL":"/openapi/v3/apis/metrics.k8s.io/v1beta1"}`) {
		t.Errorf("OpenAPI v3 has %.3000s", body)
	}
	if err := registrationsOf(t, server).ApiregistrationV1().APIServices().Delete(t.Context(), "v1beta1.metrics.k8s.io",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ours answers again", func() (bool, error) { return strings.Contains(ask(), "NodeMetricsList"), nil })
	if _, body := get(t, true, "/openapi/v3/apis/metrics.k8s.io/v1beta1", "Accept", "application/json"); !strings.Contains(string(body),
		"NodeMetrics") {
		t.Errorf("OpenAPI v3: %.100s", body)
	}
}

// failed is what discovery says could not be asked.
func failed(t *testing.T, err error) map[schema.GroupVersion]error {
	t.Helper()
	var partial *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partial) {
		t.Fatal(err)
	}
	if partial == nil {
		return nil
	}
	return partial.Groups
}
