package apiserver

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"
)

// refusing returns a port of loopback that refuses connections until the test ends.
func refusing(t *testing.T) int32 {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return int32(at.(*unix.SockaddrInet4).Port)
}

// badServer is one that answers everything with handler.
func badServer(t *testing.T, gv schema.GroupVersion, handler http.HandlerFunc) (port int32, ca []byte) {
	t.Helper()
	pair, ca := selfSigned(t, serviceName(gv)+".default.svc")
	server := httptest.NewUnstartedServer(handler)
	server.TLS, server.Config.ErrorLog = &tls.Config{Certificates: []tls.Certificate{pair}}, log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections() // of requests that hang
		server.Close()
	})
	return portOf(t, server.Listener.Addr().String()), ca
}

// What is wrong with another server is said by its APIService's condition. Its group answers 503,
// and all others go on.
func TestServersThatAreNotThere(t *testing.T) {
	_, otherCA := selfSigned(t, "other.default.svc")
	client := admin(t)
	for name, test := range map[string]struct {
		handler      http.HandlerFunc // nil for no server
		change       func(*apiregistrationv1.APIService)
		service      *corev1.Service
		reason, says string
	}{
		"garbage": {
			handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, reason: "Passed",
		},
		"errors": {
			handler: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) },
			reason:  "FailedDiscoveryCheck", says: "bad status",
		},
		"redirects": {
			handler: func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "https://169.254.169.254/", http.StatusFound)
			},
			reason: "FailedDiscoveryCheck", says: "bad status",
		},
		"nothing": {reason: "FailedDiscoveryCheck", says: "connection refused"},
		"another-certificate": {
			handler: func(http.ResponseWriter, *http.Request) { t.Error("a server with another certificate was asked") },
			change:  func(a *apiregistrationv1.APIService) { a.Spec.CABundle = otherCA }, reason: "FailedDiscoveryCheck", says: "certificate",
		},
		"another-name": {
			handler: func(http.ResponseWriter, *http.Request) { t.Error("a server with another name was asked") },
			service: &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}},
			change: func(a *apiregistrationv1.APIService) {
				a.Spec.Service.Name = "another-name-service"
			}, reason: "FailedDiscoveryCheck", says: "certificate",
		},
		"no-service": {change: func(a *apiregistrationv1.APIService) {
			a.Spec.Service.Name = "none"
		}, reason: "ServiceNotFound", says: `service/none in "default" is not present`},
		"no-port":      {service: clusterService(81), reason: "ServicePortError", says: "is not listening on port 443"},
		"no-endpoints": {service: clusterService(443), reason: "EndpointsNotFound", says: "cannot find endpointslices"},
		"this-api-server": { // it believes no front proxy, so no request goes round and round
			change: func(a *apiregistrationv1.APIService) {
				a.Spec.Service.Port, a.Spec.CABundle, a.Spec.InsecureSkipTLSVerify = ptr.To(portOf(t, server.Address().String())), nil, true
			},
			reason: "FailedDiscoveryCheck", says: "bad status",
		},
	} {
		t.Run(name, func(t *testing.T) {
			gv := schema.GroupVersion{Group: name + ".fail.example.com", Version: "v1"}
			port, ca := int32(443), otherCA
			if test.handler != nil {
				port, ca = badServer(t, gv, test.handler)
			} else if name == "nothing" {
				port = refusing(t)
			}
			service := test.service
			if service == nil {
				service = &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}
			}
			service.Name = name
			if name == "another-name" {
				service.Name = "another-name-service"
			}
			if _, err := client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			made := register(t, server, gv, func(a *apiregistrationv1.APIService) {
				a.Spec.Service, a.Spec.CABundle = &apiregistrationv1.ServiceReference{Namespace: "default", Name: name, Port: ptr.To(port)}, ca
				if test.change != nil {
					test.change(a)
				}
			})
			c := becomes(t, server, made.Name, test.reason)
			if !strings.Contains(c.Message, test.says) {
				t.Errorf("%+v", c)
			}
			eventually(t, "discovery says that it does not know", func() (bool, error) {
				_, lists, err := clientOf(t, overTLS(t)).Discovery().ServerGroupsAndResources()
				others := 0
				for _, l := range lists {
					if l.GroupVersion == "apps/v1" {
						others++
					}
				}
				return failed(t, err)[gv] != nil && others == 1, err
			})
			if test.reason == "Passed" {
				return
			}
			if resp, body := get(t, true, "/apis/"+gv.String()+"/ships"); resp.StatusCode != http.StatusServiceUnavailable ||
				!strings.Contains(string(body), "is not available; see its condition Available") {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
		})
	}
}

func clusterService(port int32) *corev1.Service {
	return &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}}}
}

// A server that was available may answer with anything.
func TestAnswersOfAServerThatTurnsBad(t *testing.T) {
	gv := schema.GroupVersion{Group: "turns.example.com", Version: "v1"}
	ships := newShipServer(t, server, gv, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "redirect"):
			http.Redirect(w, r, "https://169.254.169.254/latest/meta-data", http.StatusTemporaryRedirect)
		case strings.HasSuffix(r.URL.Path, "cut"):
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case strings.HasSuffix(r.URL.Path, "silent"):
			panic(http.ErrAbortHandler)
		}
	})
	elsewhere(t, server, gv, ships.port, ships.ca)
	becomes(t, server, "v1.turns.example.com", "Passed")
	resp, body := as(t, server, adminToken(server), "/apis/turns.example.com/v1/ships/redirect")
	if resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Location") != "" || !strings.Contains(body, "not permitted") {
		t.Errorf("redirect: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	resp, body = as(t, server, adminToken(server), "/apis/turns.example.com/v1/ships/silent")
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "does not answer") ||
		!strings.Contains(body, `"kind":"Status"`) {
		t.Errorf("silent: %d %s", resp.StatusCode, body)
	}
	config := overTLS(t)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	const cut = "/apis/turns.example.com/v1/ships/cut"
	if half, err := client.Get(config.Host + cut); err == nil {
		body, err := io.ReadAll(half.Body)
		half.Body.Close()
		if err == nil {
			t.Errorf("half an answer was passed on as a whole one: %d %q", half.StatusCode, body)
		}
	}
	if ships.last(cut) == nil {
		t.Error("the server was not asked")
	}
}

// A server that describes itself in gigabytes is not kept in memory.
func TestAServerThatDescribesTooMuch(t *testing.T) {
	gv := schema.GroupVersion{Group: "huge.example.com", Version: "v1"}
	var mu sync.Mutex
	sent, stopped := 0, false // of a request that was taken as such a document
	port, ca := badServer(t, gv, func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept"), "apidiscovery") && r.URL.Path != "/apis" { // the check of whether it is there
			return
		}
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		_, _ = io.WriteString(w, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":"`)
		block, of := strings.Repeat("x", 1<<16), 0
		for range 1 << 14 { // a gigabyte
			n, err := io.WriteString(w, block)
			of += n
			if err == nil {
				continue
			}
			mu.Lock()
			defer mu.Unlock()
			if !stopped && of >= 1<<20 { // not one that was given up for another reason
				sent, stopped = of, true
			}
			return
		}
	})
	elsewhere(t, server, gv, port, ca)
	eventually(t, "the server is not read any more", func() (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		return stopped, nil
	})
	mu.Lock()
	if sent > 32<<20 { // what is in buffers between the two comes on top
		t.Errorf("%d bytes were taken", sent)
	}
	mu.Unlock()
	_, _, err := clientOf(t, overTLS(t)).Discovery().ServerGroupsAndResources()
	if failed(t, err)[gv] == nil {
		t.Errorf("discovery: %v", err)
	}
}

// Descriptions are read as JSON only. In YAML, aliases make gigabytes of some kilobytes.
func TestAServerThatDescribesItselfInYAML(t *testing.T) {
	gv := schema.GroupVersion{Group: "yaml.example.com", Version: "v1"}
	asked := make(chan struct{}, 1000)
	port, ca := badServer(t, gv, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis" {
			w.Header().Set("Content-Type", "application/yaml")
			_, _ = io.WriteString(w,
				"kind: APIResourceList\napiVersion: v1\ngroupVersion: yaml.example.com/v1\nresources:\n- &a {name: ships, singularName: ship, kind: "+
					"Ship, namespaced: true, verbs: [get]}\n")
			return
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		_, _ = io.WriteString(w,
			"kind: APIGroupDiscoveryList\napiVersion: apidiscovery.k8s.io/v2\nitems:\n- metadata: {name: yaml.example.com}\n  versions: "+
				"[{version: v1, resources: [{resource: ships}]}]\n")
	})
	elsewhere(t, server, gv, port, ca)
	<-asked
	<-asked // it is asked again at once since the first answer was none
	_, _, err := clientOf(t, overTLS(t)).Discovery().ServerGroupsAndResources()
	if failed(t, err)[gv] == nil {
		t.Errorf("discovery: %v", err)
	}
}

// A server that takes requests and never answers holds up its own clients only: not discovery, nor
// the next start.
func TestAServerThatHangs(t *testing.T) {
	o := broken(t, func(*Options) {})
	s, stop := serve(t, o)
	gv := schema.GroupVersion{Group: "hangs.example.com", Version: "v1"}
	asked, over := make(chan string, 1000), make(chan struct{})
	port, ca := badServer(t, gv, func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		<-over // all that follows happens before the server has answered anything
	})
	t.Cleanup(func() { close(over) })
	elsewhere(t, s, gv, port, ca)
	for path := <-asked; path != "/apis"; path = <-asked { // else it is asked whether it is available
	}
	discover := func(s *Server) {
		t.Helper()
		_, lists, err := clientOf(t, s.ClientConfig("admin", "system:masters")).Discovery().ServerGroupsAndResources()
		if failed(t, err)[gv] == nil || len(lists) < 15 {
			t.Errorf("%d groups, %v", len(lists), err)
		}
	}
	discover(s)
	if _, err := clientOf(t, s.ClientConfig("admin", "system:masters")).AppsV1().Deployments("").List(t.Context(),
		metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	stop()

	for len(asked) > 0 {
		<-asked
	}
	s, stop = serve(t, o)
	defer stop()
	discover(s)
	<-asked // it was tried indeed
	resp, _ := as(t, s, adminToken(s), "/apis/hangs.example.com/v1/ships")
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%d", resp.StatusCode)
	}
}

// What other API servers read to know which client to believe.
func TestWhatExtensionServersRead(t *testing.T) {
	var m *corev1.ConfigMap
	eventually(t, "the ConfigMap is complete", func() (_ bool, err error) {
		m, err = admin(t).CoreV1().ConfigMaps("kube-system").Get(context.Background(), "extension-apiserver-authentication", metav1.GetOptions{})
		return err == nil && m.Data["requestheader-client-ca-file"] != "", err
	})
	for key, want := range map[string]string{
		"requestheader-allowed-names": `["front-proxy-client"]`, "requestheader-username-headers": `["X-Remote-User"]`,
		"requestheader-group-headers": `["X-Remote-Group"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	} {
		if m.Data[key] != want {
			t.Errorf("%s: %s", key, m.Data[key])
		}
	}
	if m.Data["client-ca-file"] == "" || m.Data["client-ca-file"] == m.Data["requestheader-client-ca-file"] {
		t.Error("each client of the cluster could name the user that it asks for")
	}

	// A front proxy's authority that is added while the server runs is told, too.
	_, another := selfSigned(t, "another-front-proxy")
	file := server.options.PKI.FrontProxyCACert
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { writeFile(t, file, string(first)) })
	writeFile(t, file, string(first)+string(another))
	eventually(t, "the new authority is told", func() (bool, error) {
		m, err := admin(t).CoreV1().ConfigMaps("kube-system").Get(context.Background(), "extension-apiserver-authentication", metav1.GetOptions{})
		return err == nil && strings.Contains(m.Data["requestheader-client-ca-file"], strings.TrimSpace(string(another))), err
	})
}
