package apiserver

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

const (
	// fewSeats is how many requests the server under attack works on at a time.
	fewSeats = 60
	// inTime is what a node may wait for an answer: it renews its lease every 10 s, and is taken
	// for dead after 50.
	inTime = 10 * time.Second
)

// attacked is a server with few seats, a node, and users with a token each who have no rights.
type attacked struct {
	*Server
	t     *testing.T
	admin *kubernetes.Clientset
	node  *kubernetes.Clientset
	atEnd []func()
}

// attack starts a server, and stops it after f.
func attack(t *testing.T, bodyLimit time.Duration, f func(a *attacked)) {
	dir := t.TempDir()
	options, err := testOptions(dir)
	if err != nil {
		t.Fatal(err)
	}
	options.seats, options.bodyLimit = fewSeats, bodyLimit
	options.TokenFile = filepath.Join(dir, "tokens.csv")
	tokens := "attacker,attacker,1\nbystander,bystander,2\nnode,system:node:n1,3,system:nodes\n"
	if err := os.WriteFile(options.TokenFile, []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-s.Ready():
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	case <-time.After(patience):
		t.Fatal("the server is not ready")
	}
	a := &attacked{Server: s, t: t, admin: clientOf(t, s.ClientConfig("admin", "system:masters"))}
	a.node = clientOf(t, a.outside("node"))
	eventually(t, "the levels are in force", func() (bool, error) { // of this server: the metrics are those of all in this process
		levels := a.read("/debug/api_priority_and_fairness/dump_priority_levels")
		return strings.Contains(levels, "\nglobal-default,"), errors.New(levels)
	})
	defer func() { // before the server stops, which waits for requests
		for _, end := range a.atEnd {
			end()
		}
	}()
	f(a)
}

func (a *attacked) read(path string) string {
	a.t.Helper()
	data, err := a.admin.RESTClient().Get().AbsPath(path).DoRaw(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	return string(data)
}

// working is how many requests of a level are worked on, and how many of it wait.
func (a *attacked) working(level string) (executing, waiting int) {
	a.t.Helper()
	data := a.read("/metrics")
	sum := func(name string) (n int) {
		line := regexp.MustCompile(name + `\{[^}]*priority_level="` + level + `"[^}]*\} (\d+)`)
		for _, found := range line.FindAllStringSubmatch(data, -1) {
			var one int
			if _, err := fmt.Sscan(found[1], &one); err != nil {
				a.t.Fatal(err)
			}
			n += one
		}
		return n
	}
	return sum("apiserver_flowcontrol_current_executing_requests"), sum("apiserver_flowcontrol_current_inqueue_requests")
}

// full waits until a level has no seat left and requests wait.
func (a *attacked) full(level string) {
	a.t.Helper()
	eventually(a.t, "all seats of the attacker's level are taken", func() (bool, error) {
		executing, waiting := a.working(level)
		return executing > 0 && waiting > 0, fmt.Errorf("%d requests executing, %d waiting", executing, waiting)
	})
}

// nodeLives has a node register, renew its lease and write its status, each in time.
func (a *attacked) nodeLives() {
	a.t.Helper()
	ctx := a.t.Context()
	try := func(what string, call func(context.Context) error) {
		a.t.Helper()
		ctx, cancel := context.WithTimeout(ctx, inTime)
		defer cancel()
		if err := call(ctx); err != nil {
			a.t.Errorf("a node cannot %s while others take all seats: %v", what, err)
		}
	}
	var node *corev1.Node
	try("register", func(ctx context.Context) (err error) {
		node, err = a.node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
		return err
	})
	leases := a.node.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	var lease *coordinationv1.Lease
	try("take a lease", func(ctx context.Context) (err error) {
		lease, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("n1")},
		}, metav1.CreateOptions{})
		return err
	})
	if a.t.Failed() {
		return
	}
	for range 5 {
		lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		try("renew its lease", func(ctx context.Context) (err error) {
			lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
			return err
		})
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	try("write its status", func(ctx context.Context) error {
		_, err := a.node.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// bystanderWaits shows that the attack works: a user of the attacker's level gets no answer.
func (a *attacked) bystanderWaits() {
	a.t.Helper()
	a.waits(clientOf(a.t, a.outside("bystander")))
}

// waits shows that a client gets no answer to a question about who it is.
func (a *attacked) waits(client *kubernetes.Clientset) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, selfReview(), metav1.CreateOptions{})
	if err == nil || ctx.Err() == nil {
		a.t.Errorf("another user without rights is served, the attack takes nothing away: %v", err)
	}
}

// outside is the configuration of a client that dials and has a token.
func (a *attacked) outside(token string) *rest.Config {
	a.t.Helper()
	config := rest.AnonymousClientConfig(overTLSOf(a.t, a.Server))
	config.BearerToken, config.QPS = token, -1
	return config
}

// insideGoesOn shows that parts of this process need no seats, but for questions about outsiders.
func (a *attacked) insideGoesOn() {
	a.t.Helper()
	inside := clientOf(a.t, a.ClientConfig("bystander"))
	ctx, cancel := context.WithTimeout(a.t.Context(), inTime)
	defer cancel()
	if _, err := inside.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		a.t.Errorf("a client in this process: %v", err)
	}
	a.waits(inside)
}

// slowBody sends a request whose body stops before its end. Any user may send this one.
func (a *attacked) slowBody() net.Conn {
	a.t.Helper()
	conn, err := tls.Dial("tcp", a.Address().String(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the attacker does not care
	if err != nil {
		a.t.Fatal(err)
	}
	a.atEnd = append(a.atEnd, func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn,
		"POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer attacker\r\n"+
			"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
	if err != nil {
		a.t.Fatal(err)
	}
	return conn
}

// One token without rights, which sends bodies that never end, can take the seats of its own level
// only.
func TestSlowBodiesDoNotStarveNodes(t *testing.T) {
	attack(t, time.Hour, func(a *attacked) {
		for range fewSeats {
			a.slowBody()
		}
		a.full("global-default")
		a.bystanderWaits()
		a.insideGoesOn()
		a.nodeLives()
	})
}

// A body that does not come ends its request, which frees the seat.
func TestSlowBodiesEnd(t *testing.T) {
	attack(t, 200*time.Millisecond, func(a *attacked) {
		conn := a.slowBody()
		if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil { // half of the limit of any request
			t.Fatal(err)
		}
		answer := make([]byte, 100)
		n, err := conn.Read(answer) // an error, or just the end of the connection
		if err != nil && err != io.EOF || strings.HasPrefix(string(answer[:n]), "HTTP/1.1 2") {
			t.Errorf("the answer to half a request is %q, %v", answer[:n], err)
		}
		eventually(t, "the seat is free", func() (bool, error) {
			executing, _ := a.working("global-default")
			return executing == 0, fmt.Errorf("%d requests have seats", executing)
		})
	})
}

// A webhook that never answers holds what it is asked about; nodes go on.
func TestDeadWebhookDoesNotStarveNodes(t *testing.T) {
	attack(t, 0, func(a *attacked) {
		release := make(chan struct{})
		var held atomic.Int64
		webhook := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			held.Add(1)
			defer held.Add(-1)
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}))
		defer webhook.Close()
		defer close(release)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})
		_, err := a.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx,
			&admissionregistrationv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: "dead"},
				Webhooks: []admissionregistrationv1.ValidatingWebhook{{
					Name: "dead.example.org", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To(webhook.URL), CABundle: ca},
					AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
					FailurePolicy: ptr.To(admissionregistrationv1.Fail), TimeoutSeconds: ptr.To[int32](30),
					Rules: []admissionregistrationv1.RuleWithOperations{{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
						Rule: admissionregistrationv1.Rule{
							APIGroups: []string{"authentication.k8s.io"}, APIVersions: []string{"v1"},
							Resources: []string{"selfsubjectreviews"},
						},
					}},
				}},
			}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		client := clientOf(t, a.outside("attacker"))
		var asking sync.WaitGroup
		for range fewSeats {
			asking.Go(func() {
				for ctx.Err() == nil { // at first the webhook may not be known
					_, _ = client.AuthenticationV1().SelfSubjectReviews().Create(ctx, selfReview(), metav1.CreateOptions{})
				}
			})
		}
		eventually(t, "the webhook holds all seats of the attacker's level", func() (bool, error) {
			executing, waiting := a.working("global-default")
			n := int(held.Load())
			return n > 0 && n == executing && waiting > 0, fmt.Errorf("%d held, %d executing, %d waiting", n, executing, waiting)
		})
		a.nodeLives()
		cancel()
		asking.Wait()
	})
}
