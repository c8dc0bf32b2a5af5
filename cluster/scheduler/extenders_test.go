package scheduler_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/coracle-project/coracle/cluster/inproc"
	"github.com/coracle-project/coracle/cluster/scheduler"
	"github.com/coracle-project/coracle/cluster/scheduler/extender"
)

// peer is the program behind an extender: a function per verb, that gets the question.
type peer struct {
	t     *testing.T
	verbs map[string]func(w http.ResponseWriter, r *http.Request, question []byte)

	mu    sync.Mutex
	asked []string
}

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verb := strings.TrimPrefix(r.URL.Path, "/scheduler/")
	p.mu.Lock()
	p.asked = append(p.asked, verb)
	p.mu.Unlock()
	question, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || p.verbs[verb] == nil {
		p.t.Errorf("asked %s %s: %v", r.Method, r.URL, err)
		return
	}
	p.verbs[verb](w, r, question)
}

// times returns how often the peer was asked.
func (p *peer) times() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

// extended returns options with an extender that is asked for the peer's verbs.
func (p *peer) extended(change func(*config.Extender)) scheduler.Options {
	c := config.Extender{URLPrefix: "http://peer/scheduler/", Weight: 1}
	for verb, to := range map[string]*string{
		"filter": &c.FilterVerb, "prioritize": &c.PrioritizeVerb, "preempt": &c.PreemptVerb,
		"bind": &c.BindVerb,
	} {
		if p.verbs[verb] != nil {
			*to = verb
		}
	}
	if change != nil {
		change(&c)
	}
	return scheduler.Options{Extenders: []*extender.Extender{extender.NewOver(c, inproc.Transport(p, slog.New(slog.DiscardHandler)))}}
}

// answers has the peer answer a question of type Q by f.
func answers[Q, A any](t *testing.T, f func(Q) A) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, _ *http.Request, question []byte) {
		var q Q
		if err := json.Unmarshal(question, &q); err != nil {
			t.Error(err)
		}
		if err := json.NewEncoder(w).Encode(f(q)); err != nil {
			t.Error(err)
		}
	}
}

func TestExtender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{t: t}
		bound := map[string]string{}
		var c *cluster
		p.verbs = map[string]func(http.ResponseWriter, *http.Request, []byte){
			"filter": answers(t, func(q extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
				left := slices.DeleteFunc(slices.Clone(q.Nodes.Items), func(n v1.Node) bool { return n.Name == "a" || q.Pod.Name == "none" })
				result := extenderv1.ExtenderFilterResult{Nodes: &v1.NodeList{Items: left}, FailedNodes: extenderv1.FailedNodesMap{"a": "not on a"}}
				if q.Pod.Name == "none" {
					result.FailedNodes["c"], result.FailedAndUnresolvableNodes = "not on c", extenderv1.FailedNodesMap{"b": "never on b"}
				}
				return result
			}),
			"prioritize": answers(t, func(q extenderv1.ExtenderArgs) extenderv1.HostPriorityList {
				return extenderv1.HostPriorityList{{Host: "c", Score: 10}} // the fullest
			}),
			"bind": answers(t, func(q extenderv1.ExtenderBindingArgs) extenderv1.ExtenderBindingResult {
				bound[q.PodName] = q.Node
				pod := c.get(q.PodName).DeepCopy()
				pod.Spec.NodeName = q.Node
				if err := c.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), pod, q.PodNamespace); err != nil {
					return extenderv1.ExtenderBindingResult{Error: err.Error()}
				}
				return extenderv1.ExtenderBindingResult{}
			}),
		}
		c = start(t, p.extended(func(c *config.Extender) { c.Weight = 100 }), node("a", "16"), node("b", "8"), node("c", "2"))
		defer c.stop()
		c.create(pod("p", "1"))
		c.on("p", "c")
		if bound["p"] != "c" {
			t.Errorf("the extender bound %v", bound)
		}
		c.event()
		c.create(pod("none", "1"))
		want := "Warning FailedScheduling 0/3 nodes are available: 1 never on b, 1 not on a, 1 not on c."
		if got := c.event(); !strings.HasPrefix(got, want) {
			t.Errorf("event is %q, not %q", got, want)
		}
	})
}

// Names are enough for an extender that knows the nodes.
func TestExtenderThatKnowsNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{t: t}
		p.verbs = map[string]func(http.ResponseWriter, *http.Request, []byte){
			"filter": answers(t, func(q extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
				if q.Nodes != nil || q.NodeNames == nil || len(*q.NodeNames) != 2 {
					t.Errorf("asked about %+v", q)
				}
				return extenderv1.ExtenderFilterResult{NodeNames: &[]string{"b"}}
			}),
		}
		c := start(t, p.extended(func(c *config.Extender) { c.NodeCacheCapable = true }), node("a", "16"), node("b", "8"))
		defer c.stop()
		c.create(pod("p", "1"))
		c.on("p", "b")
	})
}

// An extender chooses the victims, among pods of lower priority.
func TestExtenderThatPreempts(t *testing.T) {
	for _, test := range []struct {
		name, victim, event string
		violations          int64
	}{
		{"the one that was found", "low-uid", "", 0},
		{"a pod that is not on the node", "other-uid", "its answer has a pod that is not on node a", 0},
		{"a pod that is as important", "high-uid", "it wants pod default/high to be removed, whose priority is not lower", 0},
		{"a pod twice", "low-uid low-uid", "its answer has pod default/low twice", 0},
		{"less than no violation", "low-uid", "its answer has -1 violations of disruption budgets on node a", -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &peer{t: t}
				p.verbs = map[string]func(http.ResponseWriter, *http.Request, []byte){
					"preempt": answers(t, func(q extenderv1.ExtenderPreemptionArgs) extenderv1.ExtenderPreemptionResult {
						if v := q.NodeNameToVictims["a"]; v == nil || len(v.Pods) != 1 || v.Pods[0].Name != "low" {
							t.Errorf("asked about %+v", q.NodeNameToVictims)
						}
						victims := &extenderv1.MetaVictims{NumPDBViolations: test.violations}
						for uid := range strings.FieldsSeq(test.victim) {
							victims.Pods = append(victims.Pods, &extenderv1.MetaPod{UID: uid})
						}
						return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{"a": victims}}
					}),
				}
				c := start(t, p.extended(nil), node("a", "4"), onNode(withPriority(pod("low", "2"), 1), "a"),
					onNode(withPriority(pod("high", "2"), 100), "a"))
				defer c.stop()
				c.create(withPriority(pod("p", "2"), 10))
				pause()
				if p.times() == 0 {
					t.Fatal("the extender was not asked")
				}
				if test.event == "" {
					c.on("p", "a")
					return
				}
				c.on("p", "")
				if got := c.event(); !strings.Contains(got, test.event) {
					t.Errorf("event is %q, not of %q", got, test.event)
				}
				for _, name := range []string{"low", "high"} {
					c.get(name) // still there
				}
			})
		})
	}
}

// What an extender answers cannot do more than fail the pod, or be ignored.
func TestHostileExtender(t *testing.T) {
	write := func(text string) func(http.ResponseWriter, *http.Request, []byte) {
		return func(w http.ResponseWriter, _ *http.Request, _ []byte) { _, _ = io.WriteString(w, text) }
	}
	for _, test := range []struct {
		name, verb, says string
		answer           func(http.ResponseWriter, *http.Request, []byte)
	}{
		{"an error", "filter", "extender http://peer/scheduler/: out of order", write(`{"Error": "out of order"}`)},
		{"an error without end", "filter", " ...", write(`{"Error": "` + strings.Repeat("x", 1<<19) + `"}`)},
		{
			"another status", "filter", "its answer is 500 Internal Server Error",
			func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(500) },
		},
		{"no JSON", "filter", "its answer is not what was asked for", write("<html>")},
		{"JSON of another kind", "filter", "its answer is not what was asked for", write("[1]")},
		{"nothing", "filter", "its answer is not what was asked for", write("")},
		{"an answer without end", "filter", "its answer is longer than", func(w http.ResponseWriter, r *http.Request, _ []byte) {
			for text := strings.Repeat(" ", 1<<16); r.Context().Err() == nil; {
				if _, err := io.WriteString(w, text); err != nil {
					return
				}
			}
		}},
		{
			"many nodes of a few bytes", "filter", "it has more nodes than it was asked about",
			write(`{"Nodes": {"items": [{}` + strings.Repeat(",{}", 300000) + `]}}`),
		},
		{"many names", "filter", "it has more nodes than it was asked about", write(`{"NodeNames": [""` + strings.Repeat(`,""`, 300000) + `]}`)},
		{"many scores", "prioritize", "", write(`[{}` + strings.Repeat(",{}", 300000) + `]`)},
		{"nodes of another kind", "filter", "is not a list", write(`{"Nodes": {"items": {"metadata": {"name": "a"}}}}`)},
		{
			"a node that it was not asked about", "filter", `its answer has node "z", about which it was not asked`,
			write(`{"Nodes": {"items": [{"metadata": {"name": "z"}}]}}`),
		},
		{
			"a redirect", "filter", "it sends the scheduler elsewhere, to http://169.254.169.254/",
			func(w http.ResponseWriter, r *http.Request, _ []byte) {
				http.Redirect(w, r, "http://169.254.169.254/", http.StatusTemporaryRedirect)
			},
		},
		{"a panic", "filter", "extender http://peer/scheduler/: filter:", func(http.ResponseWriter, *http.Request, []byte) {
			panic(http.ErrAbortHandler)
		}},
		{"no answer", "filter", "context deadline exceeded", func(_ http.ResponseWriter, r *http.Request, _ []byte) { <-r.Context().Done() }},
		{"a binding that fails", "bind", "no such node", write(`{"Error": "no such node"}`)},
		{"a score that is too high", "prioritize", "", write(`[{"Host": "a", "Score": 9223372036854775807}]`)},
		{"a score below 0", "prioritize", "", write(`[{"Host": "a", "Score": -9223372036854775808}]`)},
		{"a score of another node", "prioritize", "", write(`[{"Host": "z", "Score": 1}]`)},
	} {
		for _, ignorable := range []bool{false, true} {
			t.Run(fmt.Sprint(test.name, " ignorable ", ignorable), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := &peer{t: t, verbs: map[string]func(http.ResponseWriter, *http.Request, []byte){test.verb: test.answer}}
					c := start(t, p.extended(func(c *config.Extender) { c.Ignorable = ignorable }), node("a", "2"), node("b", "8"))
					defer c.stop()
					c.create(pod("p", "1"))
					time.Sleep(6 * time.Second)
					synctest.Wait()
					if p.times() == 0 {
						t.Fatal("the extender was not asked")
					}
					if test.says == "" || ignorable && test.verb == "filter" {
						c.on("p", "b")
						return
					}
					c.on("p", "")
					if got := c.event(); !strings.Contains(got, test.says) || len(got) > 1200 {
						t.Errorf("event is %q, not of %q", got, test.says)
					}
					if got := condition(c.get("p")).Message; len(got) > 1200 {
						t.Errorf("condition has %d bytes", len(got))
					}
				})
			})
		}
	}
}

// Pods that an extender is not asked about wait for it at most three times, however long it hangs.
func TestExtenderThatHangsIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		hangs.Store(true)
		p := &peer{t: t}
		p.verbs = map[string]func(http.ResponseWriter, *http.Request, []byte){"filter": func(w http.ResponseWriter, r *http.Request, q []byte) {
			if hangs.Load() {
				<-r.Context().Done()
				return
			}
			answers(t, func(q extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
				return extenderv1.ExtenderFilterResult{Nodes: q.Nodes}
			})(w, r, q)
		}}
		roomy := node("a", "100")
		roomy.Status.Allocatable["example.com/gpu"] = resource.MustParse("100")
		c := start(t, p.extended(func(c *config.Extender) {
			c.ManagedResources = []config.ExtenderManagedResource{{Name: "example.com/gpu"}}
			c.HTTPTimeout = metav1.Duration{Duration: 4 * time.Second}
		}), roomy)
		defer c.stop()
		began := time.Now()
		const pods = 10
		for i := range pods {
			gpu := pod(fmt.Sprint("gpu", i), "1")
			gpu.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
			c.create(gpu)
		}
		c.create(pod("plain", "1"))
		time.Sleep(13 * time.Second)
		synctest.Wait()
		c.on("plain", "a")
		if asked := p.times(); asked != 3 {
			t.Errorf("it was asked %d times within %s", asked, time.Since(began))
		}
		hangs.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		for i := range pods {
			c.on(fmt.Sprint("gpu", i), "a")
		}
	})
}

// What fails for the node that a pod was nominated to is not tried again for all nodes at once.
func TestExtenderThatFailsForTheNominatedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{t: t, verbs: map[string]func(http.ResponseWriter, *http.Request, []byte){
			"filter": func(_ http.ResponseWriter, r *http.Request, _ []byte) { <-r.Context().Done() },
		}}
		c := start(t, p.extended(nil), node("a", "4"))
		defer c.stop()
		nominated := pod("p", "1")
		nominated.Status.NominatedNodeName = "a"
		c.create(nominated)
		time.Sleep(5500 * time.Millisecond) // its time limit, and less than a back-off more
		synctest.Wait()
		if n := p.times(); n != 1 {
			t.Errorf("it was asked %d times", n)
		}
		if got := c.event(); !strings.Contains(got, "context deadline exceeded") {
			t.Errorf("event is %q", got)
		}
	})
}
