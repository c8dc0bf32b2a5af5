package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/coracle-project/coracle/cluster/apiserver/dataversion"
	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/apiserver/snapshot"
	"github.com/coracle-project/coracle/cluster/health"
)

// Old versions of objects are dropped.
func TestCompaction(t *testing.T) {
	if compactEvery != 5*time.Minute {
		t.Errorf("old versions are dropped every %v, upstream's value is 5m", compactEvery)
	}
	s, err := openStore(t.Context(), &[]Options{broken(t, func(o *Options) { o.compactEvery = 20 * time.Millisecond })}[0], servedResources())
	if err != nil {
		t.Fatal(err)
	}
	defer s.shut()
	first, err := s.probe.Put(t.Context(), "/registry/a", "1")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first version is dropped", func() (bool, error) {
		if _, err := s.probe.Put(t.Context(), "/registry/a", "2"); err != nil {
			return false, err
		}
		_, err := s.probe.Get(t.Context(), "/registry/a", clientv3.WithRev(first.Header.Revision))
		return errors.Is(err, rpctypes.ErrCompacted), err
	})
}

// When etcd is full, clients are told so clearly, and can read and delete; it goes on by itself.
func TestFullStore(t *testing.T) {
	var board health.Board
	o := broken(t, func(o *Options) { o.EtcdQuota, o.StoreHealth = 8<<20, board.Add("store") })
	s, stop := serve(t, o)
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	maps := client.CoreV1().ConfigMaps("default")
	filler := func(i int) string { return fmt.Sprintf("filler-%d", i) }
	const large = 500 << 10
	made, size := 0, large
	eventually(t, "it is full", func() (bool, error) {
		_, err := maps.Create(t.Context(), configMap(filler(made), map[string]string{"k": strings.Repeat("x", size)}), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // a write was done although it was refused
			made++
			return false, nil
		}
		var status *apierrors.StatusError
		if errors.As(err, &status) {
			if status.ErrStatus.Code != http.StatusInsufficientStorage ||
				!strings.Contains(err.Error(),
					"the cluster's store is full: nothing can be created or changed, reading and deleting go on; 'coracle status' says what to do") {
				t.Fatalf("error %#v", status.ErrStatus)
			}
			// Room for smaller objects may be left.
			size = max(size/2, 1<<10)
			return !board.States()[0].Healthy, nil
		}
		if err == nil {
			made++
		}
		return false, err
	})
	if state := board.States()[0]; !strings.Contains(state.Message, "the store is full") ||
		!strings.Contains(state.Message, "Delete objects that are not needed any more") {
		t.Errorf("state %+v", state)
	}
	if _, err := maps.Patch(t.Context(), filler(0), "application/merge-patch+json", []byte(`{"data":{"k":"y"}}`),
		metav1.PatchOptions{}); err == nil || !strings.Contains(err.Error(), "the cluster's store is full") {
		t.Errorf("a change: %v", err)
	}
	if got, err := maps.Get(t.Context(), filler(0), metav1.GetOptions{}); err != nil || len(got.Data["k"]) != large {
		t.Errorf("reading: %v", err)
	}
	// A full cluster starts, too: otherwise nothing could be deleted any more.
	stop()
	var again health.Board
	o.StoreHealth = again.Add("store")
	s, stop = serve(t, o)
	defer stop()
	maps = clientOf(t, s.ClientConfig("admin", "system:masters")).CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), configMap("a", map[string]string{"k": "small"}), metav1.CreateOptions{}); err == nil ||
		!strings.Contains(err.Error(), "the cluster's store is full") {
		t.Errorf("after a restart: %v", err)
	}
	for i := range made + 1 { // the last one was refused, and may be there
		if err := maps.Delete(t.Context(), filler(i), metav1.DeleteOptions{}); err != nil && !(i == made && apierrors.IsNotFound(err)) {
			t.Fatalf("deleting: %v", err)
		}
	}
	eventually(t, "it goes on", func() (bool, error) {
		_, err := maps.Create(t.Context(), configMap("a", map[string]string{"k": "small"}), metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), err // a write that was refused may have been done
	})
	eventually(t, "it says so", func() (bool, error) { return again.States()[0].Healthy, nil })
	if _, err := maps.Create(t.Context(), configMap("b", map[string]string{"k": "small"}), metav1.CreateOptions{}); err != nil {
		t.Errorf("it is well, and refuses: %v", err)
	}
}

// Data that a newer minor version has written are not used.
func TestNewerData(t *testing.T) {
	write := func(o Options, text string) (keys int64) {
		t.Helper()
		e, err := etcd.Start(t.Context(), etcd.Options{Dir: o.Root, State: o.State})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		c := e.Client()
		defer c.Close()
		if text != "" {
			if _, err := c.Put(t.Context(), dataversion.Key, text); err != nil {
				t.Fatal(err)
			}
		}
		all, err := c.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return all.Count
	}
	for name, test := range map[string]struct{ text, want string }{
		"Kubernetes": {
			`{"coracle":"v1.2.3","kubernetes":"1.99"}`,
			"the cluster's data was written by a newer version: Kubernetes 1.99 wrote it, and this is Kubernetes " + dataversion.Own("").Kubernetes,
		},
		"Coracle": {
			`{"coracle":"v1.3.0","kubernetes":"1.36"}`,
			"the cluster's data was written by a newer version: Coracle v1.3.0 wrote it, and this is Coracle v1.2.9",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := broken(t, func(o *Options) { o.Version = "v1.2.9" })
			write(o, test.text)
			s, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) ||
				!strings.Contains(err.Error(), "install that version again, or go back to a snapshot") {
				t.Errorf("error %v", err)
			}
			if keys := write(o, ""); keys != 2 { // the compactor has one
				if keys != 1 {
					t.Errorf("%d keys are in etcd: something was written", keys)
				}
			}
		})
	}
	t.Run("older", func(t *testing.T) {
		o := broken(t, func(o *Options) { o.Version = "v1.2.9" })
		write(o, `{"coracle":"v1.1.0","kubernetes":"1.35"}`)
		s, err := openStore(t.Context(), &o, servedResources())
		if err != nil {
			t.Fatal(err)
		}
		defer s.shut()
		got, err := s.probe.Get(t.Context(), dataversion.Key)
		if want := `{"coracle":"v1.2.9","kubernetes":"` + dataversion.Own("").Kubernetes + `"}`; err != nil || got.Count != 1 ||
			string(got.Kvs[0].Value) != want {
			t.Errorf("it says %v, %v, want %s", got, err, want)
		}
		// A development build in between does not hide the release from older ones.
		if err := s.claim(t.Context(), dataversion.Own("v0.0.0-20260101")); err != nil {
			t.Fatal(err)
		}
		if err := s.claim(t.Context(), dataversion.Own("v1.1.0")); !errors.Is(err, dataversion.ErrNewer) {
			t.Errorf("after a development build an older release takes the data: %v", err)
		}
	})
	t.Run("of others, who forbid it", func(t *testing.T) {
		for _, denied := range []denying{{get: true}, {put: true}} {
			s := &store{probe: clientv3.NewCtxClient(t.Context()), log: slog.New(slog.DiscardHandler)}
			s.probe.KV = denied
			if err := s.claim(t.Context(), dataversion.Own("v1.2.9")); err != nil {
				t.Errorf("%+v: %v", denied, err)
			}
			s.probe.KV = denying{}
			if err := s.claim(t.Context(), dataversion.Own("v1.2.9")); !errors.Is(err, errOther) {
				t.Errorf("another error is taken for it: %v", err)
			}
		}
	})
}

// denying is an etcd that forbids to read or to write a key, or fails otherwise.
type denying struct {
	clientv3.KV
	get, put bool
}

var errOther = errors.New("another error")

func (d denying) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	switch {
	case d.get:
		return nil, rpctypes.ErrPermissionDenied
	case d.put:
		return &clientv3.GetResponse{}, nil
	}
	return nil, errOther
}

func (d denying) Txn(context.Context) clientv3.Txn { return denyingTxn{} }

type denyingTxn struct{ clientv3.Txn }

func (t denyingTxn) If(...clientv3.Cmp) clientv3.Txn  { return t }
func (t denyingTxn) Then(...clientv3.Op) clientv3.Txn { return t }
func (t denyingTxn) Commit() (*clientv3.TxnResponse, error) {
	return nil, rpctypes.ErrPermissionDenied
}

// A cluster restored into another directory accepts the tokens and certificates of the one that was
// saved.
func TestRestoredClusterKnowsItsClients(t *testing.T) {
	o := broken(t, func(*Options) {})
	s, stop := serve(t, o)
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), serviceAccount("robot"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	certificate := overTLSOf(t, s)
	file := filepath.Join(t.TempDir(), "snapshot")
	silent := slog.New(slog.DiscardHandler)
	if _, err := snapshot.Save(t.Context(), o.Root, o.State, file, snapshot.Facts{}, func(int64, int64) {}, silent); err != nil {
		t.Fatal(err)
	}
	stop()
	who := func(s *Server, how *rest.Config) (string, error) {
		how.Host = "https://" + s.Address().String()
		review, err := clientOf(t, how).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		return review.Status.UserInfo.Username, nil
	}
	byToken := func(s *Server) *rest.Config {
		how := rest.AnonymousClientConfig(overTLSOf(t, s))
		how.BearerToken = token.Status.Token
		return how
	}
	if got, err := who(server, byToken(server)); !apierrors.IsUnauthorized(err) {
		t.Errorf("another cluster takes the token for %s, %v: nothing is tested", got, err)
	}
	other := rest.CopyConfig(certificate)
	other.CAData = overTLS(t).CAData
	if got, err := who(server, other); !apierrors.IsUnauthorized(err) {
		t.Errorf("another cluster takes the certificate for %s, %v: nothing is tested", got, err)
	}

	restored := broken(t, func(*Options) {}) // with an authority of its own
	progress := func(int64, int64) {}
	if _, err := snapshot.Restore(t.Context(), etcd.Options{Dir: restored.Root}, file, dataversion.Own(""), progress, silent); err != nil {
		t.Fatal(err)
	}
	if restored, err = testOptions(restored.Root); err != nil { // as each start
		t.Fatal(err)
	}
	s, stop = serve(t, restored)
	defer stop()
	if got, err := who(s, byToken(s)); err != nil || got != "system:serviceaccount:default:robot" {
		t.Errorf("the token is %q's, %v", got, err)
	}
	if got, err := who(s, certificate); err != nil || got != "kubernetes-admin" {
		t.Errorf("the certificate is %q's, %v", got, err)
	}
}

func serviceAccount(name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
