package apitest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

// Upstream wraps one of upstream's controllers, which are the oracle of ours.
type Upstream func(ctx context.Context)

// Run implements what [Controllers] want.
func (u Upstream) Run(ctx context.Context) { u(ctx) }

// Scenario is what happens to a cluster. It calls note whenever the controllers have come to rest:
// all that then shows in the API has to be the same with either implementation.
type Scenario func(t *testing.T, s *Server, note func(step string))

// SameAs plays scenario against ours and against upstream's controllers and reports each
// difference.
func SameAs(t *testing.T, ours, upstreams Controllers, scenario Scenario) {
	t.Helper()
	quiet()
	want := play(t, upstreams, scenario, nil)
	compare(t, play(t, ours, scenario, nil), want, "upstream", "ours")
}

// Survives plays scenario once undisturbed, and then with a crash of the controllers after each of
// their writes in turn. Objects have to be the same in the end of each step; events may be lost.
func (controllers Controllers) Survives(t *testing.T, scenario Scenario) {
	t.Helper()
	quiet()
	writes := 0
	want := play(t, controllers, func(t *testing.T, s *Server, note func(string)) {
		scenario(t, s, note)
		for _, n := range s.Writes() {
			writes += n
		}
	}, nil)
	for i := range writes {
		got := play(t, controllers, scenario, func(s *Server) { s.CrashAfter(i + 1) })
		for _, played := range []history{got, want} {
			for step := range played.states {
				played.states[step] = slices.DeleteFunc(played.states[step], func(line string) bool { return strings.HasPrefix(line, "Event ") })
			}
		}
		compare(t, got, want, "undisturbed", fmt.Sprintf("crashed at %d", i+1))
		if t.Failed() {
			return
		}
	}
}

// history is the state at each step of a scenario.
type history struct {
	steps  []string
	states map[string][]string
}

// play plays scenario, beginning with prepare if that is not nil.
func play(t *testing.T, controllers Controllers, scenario Scenario, prepare func(*Server)) history {
	t.Helper()
	played := history{states: map[string][]string{}}
	controllers.Run(t, func(t *testing.T, s *Server) {
		if prepare != nil {
			prepare(s)
		}
		scenario(t, s, func(step string) {
			// Upstream's controllers wait out back-offs and batch periods.
			for busy := true; busy; {
				s.Pass(3 * time.Second)
				crashed := s.Crashed()
				if crashed {
					s.Restart()
				}
				busy = s.Kubelet(t) || crashed
			}
			played.steps = append(played.steps, step)
			played.states[step] = s.state(t)
		})
	})
	return played
}

func compare(t *testing.T, got, want history, wantName, gotName string) {
	t.Helper()
	for _, step := range got.steps {
		var diff []string
		for _, line := range missing(want.states[step], got.states[step]) {
			diff = append(diff, "only "+wantName+": "+line)
		}
		for _, line := range missing(got.states[step], want.states[step]) {
			diff = append(diff, "only "+gotName+": "+line)
		}
		if len(diff) > 0 {
			t.Errorf("%s:\n%s", step, strings.Join(diff, "\n"))
		}
	}
}

// missing returns what of a (with its count) is not in b.
func missing(a, b []string) []string {
	b = slices.Clone(b)
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool {
		i := slices.Index(b, line)
		if i >= 0 {
			b = slices.Delete(b, i, i+1)
		}
		return i >= 0
	})
}

// state is everything in the API, an object or event a line, without what differs from run to run.
func (s *Server) state(t *testing.T) []string {
	t.Helper()
	ctx, all := context.Background(), metav1.ListOptions{}
	var lines []string
	add := func(kind string, list runtime.Object, err error) {
		if err != nil {
			t.Fatal(err)
		}
		objs, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(list)
		items, _ := objs["items"].([]any)
		for _, item := range items {
			line, err := yaml.Marshal(normal(item.(map[string]any)))
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, kind+"\n"+podName.ReplaceAllString(string(line), "-*"))
		}
	}
	apps, batch := s.Kube.AppsV1(), s.Kube.BatchV1()
	deployments, err := apps.Deployments(Namespace).List(ctx, all)
	add("Deployment", deployments, err)
	sets, err := apps.ReplicaSets(Namespace).List(ctx, all)
	add("ReplicaSet", sets, err)
	daemons, err := apps.DaemonSets(Namespace).List(ctx, all)
	add("DaemonSet", daemons, err)
	revisions, err := apps.ControllerRevisions(Namespace).List(ctx, all)
	add("ControllerRevision", revisions, err)
	jobs, err := batch.Jobs(Namespace).List(ctx, all)
	add("Job", jobs, err)
	pods, err := s.Kube.CoreV1().Pods(Namespace).List(ctx, all)
	add("Pod", pods, err)

	events := map[string]bool{}
	list, err := s.Kube.CoreV1().Events(Namespace).List(ctx, all)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		events[eventLine(e)] = true
	}
	for e := range events {
		lines = append(lines, e)
	}
	return lines
}

// podName matches the part of a name that this server generated.
var podName = regexp.MustCompile(`-\d{5}\b`)

func eventLine(e corev1.Event) string {
	message := strings.TrimPrefix(e.Message, "(combined from similar events): ")
	return fmt.Sprintf("Event %s %s %s %s %s", e.InvolvedObject.Kind, e.Source.Component, e.Type, e.Reason,
		podName.ReplaceAllString(message, "-*"))
}

// normal drops times, identities and counts of writes; conditions are put in order.
func normal(obj map[string]any) map[string]any {
	m, _ := obj["metadata"].(map[string]any)
	generation := m["generation"]
	for _, k := range []string{"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generation", "namespace"} {
		if k == "deletionTimestamp" && m[k] != nil {
			m["deleted"] = true
		}
		delete(m, k)
	}
	status, _ := obj["status"].(map[string]any)
	if observed, ok := status["observedGeneration"]; ok {
		status["observedGeneration"] = fmt.Sprint("current: ", observed == generation)
	}
	if conditions, ok := status["conditions"].([]any); ok {
		slices.SortFunc(conditions, func(a, b any) int {
			return strings.Compare(fmt.Sprint(a.(map[string]any)["type"]), fmt.Sprint(b.(map[string]any)["type"]))
		})
	}
	strip(obj)
	return obj
}

// strip removes times and UIDs at any depth.
func strip(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			switch {
			case strings.HasSuffix(k, "Time") || strings.HasSuffix(k, "At"):
				v[k] = inner != nil
			case k == "uid":
				delete(v, k)
			default:
				strip(inner)
			}
		}
	case []any:
		for _, inner := range v {
			strip(inner)
		}
	}
}

// quiet keeps the logs of either side, which report each refused request, out of the test's. It
// also removes upstream's error handler that sleeps until some time after the last error: that was
// in another bubble, whose clock showed another time.
func quiet() {
	utilruntime.ErrorHandlers = nil
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	_ = flags.Set("logtostderr", "false")
	_ = flags.Set("alsologtostderr", "false")
	_ = flags.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
}
