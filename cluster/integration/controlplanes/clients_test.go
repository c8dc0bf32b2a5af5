//go:build ha

package controlplanes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/integration/linear"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

const (
	// Several keys are used at a time, for so many requests: a history of one key that is long takes
	// long to check.
	keysAtOnce     = 6
	requestsOfKeys = 240
	// clientLimit is how long a client waits for an answer. What it does not get then is unknown.
	clientLimit = 500 * time.Millisecond
	checkLimit  = time.Minute
	valueKey    = "value"
)

// kinds are what clients do about an object that they know, in these shares.
var kinds = []linear.Kind{linear.Get, linear.Get, linear.Create, linear.Update, linear.Update, linear.Update, linear.Delete}

// clients create, read, update and delete ConfigMaps while machines die. All that they do and see
// is kept.
type clients struct {
	history *linear.History
	all     []*apiClient
}

// apiClient makes one request at a time, through a server until that does not answer.
type apiClient struct {
	id      int
	history *linear.History
	servers []rest.Interface
	server  int
	// seen are the objects that it knows, maybe replaced since. values counts what it has written.
	seen   map[string]*corev1.ConfigMap
	values int
	random *rand.Rand
}

// newClients returns a client for each machine, which begins with that machine's server.
func newClients(t *testing.T, all []*machine) *clients {
	t.Helper()
	c := &clients{history: linear.New()}
	var servers []rest.Interface
	for _, m := range all {
		config := must(clientcmd.BuildConfigFromFlags("", filepath.Join(m.Root, "kubeconfig")))
		config.Timeout, config.QPS = clientLimit, -1
		servers = append(servers, must(kubernetes.NewForConfig(config)).CoreV1().RESTClient())
	}
	for i := range all {
		c.all = append(c.all, &apiClient{
			id: i, history: c.history, servers: servers, server: i, seen: map[string]*corev1.ConfigMap{},
			random: rand.New(rand.NewPCG(1, uint64(i))),
		})
	}
	return c
}

// load has the clients work until the function that it returns is called, which waits for them.
func (c *clients) load() (calm func()) {
	busy, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for _, one := range c.all {
		working.Go(func() {
			for busy.Err() == nil {
				one.work()
			}
		})
	}
	return func() {
		stop()
		working.Wait()
	}
}

// work makes one request, of any kind, about one of the keys that are used now.
func (c *apiClient) work() {
	key := fmt.Sprintf("linear-%d-%d", c.history.Len()/requestsOfKeys, c.random.IntN(keysAtOnce))
	c.values++
	r := linear.Request{Kind: linear.Get, Key: key, Value: fmt.Sprintf("%d-%d", c.id, c.values)}
	known := c.seen[key]
	switch {
	case known == nil && c.random.IntN(2) == 0:
		r.Kind = linear.Create
	case known == nil:
	default:
		r.Kind = kinds[c.random.IntN(len(kinds))]
		r.Expect = known.Data[valueKey]
	}
	c.do(r)
}

// do makes a request.
func (c *apiClient) do(r linear.Request) linear.Answer {
	return c.history.Do(c.id, r, func() linear.Answer {
		object, err := c.send(r)
		outcome := outcomeOf(err)
		switch outcome {
		case linear.Done:
			if c.seen[r.Key] = object; r.Kind == linear.Delete {
				delete(c.seen, r.Key)
			}
		case linear.Unknown, linear.NotSent:
			c.server = (c.server + 1) % len(c.servers)
		default:
			delete(c.seen, r.Key) // it is not what it was
		}
		return linear.Answer{Outcome: outcome, Value: object.Data[valueKey]}
	})
}

// send makes one attempt: client-go would repeat some, and take the effect of the first for that of
// another client.
func (c *apiClient) send(r linear.Request) (*corev1.ConfigMap, error) {
	server := c.servers[c.server]
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: r.Key}, Data: map[string]string{valueKey: r.Value}}
	request := map[linear.Kind]func() *rest.Request{
		linear.Get:    func() *rest.Request { return server.Get().Name(r.Key) },
		linear.Create: func() *rest.Request { return server.Post().Body(object) },
		linear.Update: func() *rest.Request {
			object.ResourceVersion = c.seen[r.Key].ResourceVersion
			return server.Put().Name(r.Key).Body(object)
		},
		linear.Delete: func() *rest.Request { return server.Delete().Name(r.Key) },
	}[r.Kind]()
	result := request.Namespace("default").Resource("configmaps").MaxRetries(0).Do(context.Background())
	answer := &corev1.ConfigMap{}
	if r.Kind == linear.Delete {
		return answer, result.Error()
	}
	return answer, result.Into(answer)
}

// outcomeOf is what an error says about a request.
func outcomeOf(err error) linear.Outcome {
	dial := (*net.OpError)(nil)
	switch {
	case err == nil:
		return linear.Done
	case apierrors.IsNotFound(err):
		return linear.Missing
	case apierrors.IsAlreadyExists(err):
		return linear.Exists
	case apierrors.IsConflict(err):
		return linear.Conflict
	case errors.As(err, &dial) && dial.Op == "dial":
		return linear.NotSent
	}
	return linear.Unknown
}

// neverDeleted is a key that clients do not use.
const neverDeleted = "linear"

// check reads all keys through all servers, and checks that what the clients saw is linearizable.
// That a checker would find a lost write is shown by one: of a key without a delete that may still
// take effect.
func (c *clients) check(t *testing.T) {
	t.Helper()
	reader := *c.all[0]
	reader.id = len(c.all)
	testkit.Eventually(t.Context(), t, "create "+neverDeleted, func() (bool, error) {
		a := reader.do(linear.Request{Kind: linear.Create, Key: neverDeleted, Value: neverDeleted})
		return a.Outcome == linear.Done || a.Outcome == linear.Exists, errors.New(string(a.Outcome))
	})
	there := linear.Request{}
	for _, key := range c.history.Keys() {
		for i := range reader.servers {
			testkit.Eventually(t.Context(), t, "read "+key, func() (bool, error) {
				reader.server = i
				r := linear.Request{Kind: linear.Get, Key: key}
				a := reader.do(r)
				if a.Outcome == linear.Done && !c.history.MaybeDeleted(key) {
					there = r
				}
				return a.Outcome == linear.Done || a.Outcome == linear.Missing, errors.New(string(a.Outcome))
			})
		}
	}
	h := c.history
	t.Logf("clients made %d requests about %d keys; the outcome of %d is unknown", h.Len(), len(h.Keys()), h.Unknown())
	if err := c.history.Check(checkLimit); err != nil {
		t.Error(err)
	}
	if there.Key == "" {
		t.Fatal("no object is left, so none can be lost")
	}
	lost := c.history.Clone()
	lost.Do(reader.id, there, func() linear.Answer { return linear.Answer{Outcome: linear.Missing} })
	if err := lost.Check(checkLimit); err == nil {
		t.Errorf("the checker does not find that %s is lost", there.Key)
	}
}
