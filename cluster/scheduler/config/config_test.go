package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/scheduler"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/plugins"
)

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func load(t *testing.T, text string) (scheduler.Options, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

// points returns by point the plugins of a profile in their order, with the weights that are not 1.
func points(t *testing.T, o scheduler.Options, profile string) (map[framework.Point][]string, map[string]int64) {
	t.Helper()
	if o.Profiles[profile] == nil {
		t.Fatalf("there is no profile %q", profile)
	}
	h := &framework.Handle{Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0)}
	list := o.Profiles[profile](h)
	if _, err := framework.NewProfile(profile, list...); err != nil {
		t.Fatal(err)
	}
	order, weights := make(map[framework.Point][]string), make(map[string]int64)
	for _, e := range list {
		order[e.At] = append(order[e.At], e.Name())
		if e.At == framework.AtScore && e.Weight != 1 {
			weights[e.Name()] = e.Weight
		}
	}
	return order, weights
}

// A file that says nothing is upstream's defaults, which are what runs without a file.
func TestFileThatSaysNothing(t *testing.T) {
	o, err := load(t, head)
	if err != nil {
		t.Fatal(err)
	}
	order, weights := points(t, o, v1.DefaultSchedulerName)
	h := &framework.Handle{Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0)}
	asked := 0
	for at, got := range order {
		var want []string
		for _, e := range plugins.Default(h, plugins.Args{}) {
			if framework.Implements(e.Plugin, at) {
				want = append(want, e.Name())
				if w, ok := weights[e.Name()]; at == framework.AtScore && e.Weight != 1 && (!ok || w != e.Weight) {
					t.Errorf("weight of %s is %d, not %d", e.Name(), w, e.Weight)
				}
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("at %s there are %v, not %v", at, got, want)
		}
		asked += len(got)
	}
	if asked < 40 || !o.WithoutDefault || len(o.Profiles) != 1 || o.Parallelism != 0 {
		t.Errorf("%d plugins at points, options %+v", asked, o)
	}
}

func TestProfiles(t *testing.T) {
	o, err := load(t, head+`
parallelism: 3
percentageOfNodesToScore: 40
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
leaderElection: {leaderElect: false}
profiles:
- schedulerName: packing
  percentageOfNodesToScore: 70
  plugins:
    multiPoint:
      disabled: [{name: ImageLocality}, {name: NodeDeclaredFeatures}]
    score:
      enabled: [{name: NodeResourcesFit, weight: 7}]
      disabled: [{name: NodeResourcesBalancedAllocation}]
    preScore:
      disabled: [{name: NodeResourcesBalancedAllocation}]
    filter:
      enabled: [{name: NodePorts}]
    preFilter:
      enabled: [{name: NodePorts}]
- schedulerName: bare
  plugins:
    preScore: {disabled: [{name: "*"}]}
    score: {disabled: [{name: "*"}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	if o.Parallelism != 3 || o.PercentageOfNodesToScore != 40 || o.Percentages["packing"] != 70 || o.InitialBackoff.Seconds() != 2 ||
		o.MaxBackoff.Seconds() != 20 {
		t.Errorf("options are %+v", o)
	}
	if _, ok := o.Percentages["bare"]; ok || len(o.Profiles) != 2 {
		t.Errorf("percentages are %v of %d profiles", o.Percentages, len(o.Profiles))
	}
	order, weights := points(t, o, "packing")
	if got := strings.Join(order[framework.AtScore],
		" "); got != "NodeResourcesFit TaintToleration NodeAffinity PodTopologySpread InterPodAffinity DynamicResources" ||
		weights["NodeResourcesFit"] != 7 {
		t.Errorf("scored by %s, weights %v", got, weights)
	}
	if got := order[framework.AtFilter]; got[0] != "NodePorts" || got[1] != "NodeUnschedulable" ||
		strings.Count(strings.Join(got, " "), "NodePorts") != 1 {
		t.Errorf("filtered by %v", got)
	}
	order, _ = points(t, o, "bare")
	if len(order[framework.AtScore]) != 0 || len(order[framework.AtFilter]) < 8 {
		t.Errorf("scored by %v, filtered by %v", order[framework.AtScore], order[framework.AtFilter])
	}
}

func TestArgs(t *testing.T) {
	o, err := load(t, head+`
profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args:
      ignoredResources: [example.com/ignored]
      ignoredResourceGroups: [example.org]
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 3}, {name: example.com/gpu}]
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 50, score: 10}]}
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 9, ignorePreferredTermsOfExistingPods: true}
  - name: NodeAffinity
    args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: Exists}]}]}}}
  - name: PodTopologySpread
    args: {defaultingType: List, defaultConstraints: [{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: ScheduleAnyway}]}
  - name: DefaultPreemption
    args: {minCandidateNodesPercentage: 5, minCandidateNodesAbsolute: 7}
  - name: VolumeBinding
    args: {bindTimeoutSeconds: 30}
  - name: DynamicResources
    args: {filterTimeout: 3s, bindingTimeout: 60s}
extenders:
- urlPrefix: https://127.0.0.1:1/x
  filterVerb: filter
  prioritizeVerb: prioritize
  weight: 2
  httpTimeout: 100ms
  nodeCacheCapable: true
  ignorable: true
  enableHTTPS: true
  tlsConfig: {insecure: true}
  managedResources: [{name: example.com/extended, ignoredByScheduler: true}]
`)
	if err != nil {
		t.Fatal(err)
	}
	points(t, o, v1.DefaultSchedulerName)
	if len(o.Extenders) != 1 || !o.Extenders[0].Filters() || !o.Extenders[0].Scores() || o.Extenders[0].Binds() ||
		!o.Extenders[0].Ignorable() {
		t.Errorf("extenders are %+v", o.Extenders)
	}
}

// What is wrong, and what this scheduler does not do, is refused with where it is and what to do.
func TestWrongFiles(t *testing.T) {
	profile := func(text string) string { return head + "profiles:\n- schedulerName: a\n  " + text + "\n" }
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "config.yaml: "},
		{"another kind", "apiVersion: v1\nkind: Pod\n", "no kind \"Pod\" is registered"},
		{
			"settings of a plugin alone", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: NodeAffinityArgs\n",
			"kind: it is a NodeAffinityArgs, not a KubeSchedulerConfiguration",
		},
		{"an old version", "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n", "v1beta3"},
		{"an unknown field", head + "profile: []\n", `unknown field "profile"`},
		{"a field twice", head + "parallelism: 1\nparallelism: 2\n", `already set in map`},
		{"two documents", head + "---\n" + head, "a second document starts: only one is allowed"},
		{"not YAML", head + "profiles: [\n", "yaml"},
		{"no parallelism", head + "parallelism: 0\n", "line 3: parallelism: Invalid value: 0: should be an integer value greater than zero"},
		{
			"leader election", head + "leaderElection: {leaderElect: true}\n",
			"line 3: leaderElection.leaderElect: control-plane nodes elect the one that schedules by themselves: set it to false, or remove leaderElection",
		},
		{"leader election by default", head + "leaderElection: {resourceName: x}\n", "leaderElection.leaderElect: control-plane nodes elect the one"},
		{
			"a connection", head + "clientConnection: {kubeconfig: /x}\n",
			"line 3: clientConnection: how the API server is reached does not depend on this file: remove it",
		},
		{"profiling", head + "enableContentionProfiling: true\n", "enableProfiling: profiles are served on the socket of the cluster process"},
		{"delayed caches", head + "delayCacheUntilActive: true\n", "delayCacheUntilActive: the scheduler of a node starts only when it leads: remove it"},
		{"a profile twice", head + "profiles:\n- {schedulerName: a}\n- {schedulerName: a}\n", "profiles[1].schedulerName: Duplicate value"},
		{
			"a plugin that is not there", profile("plugins: {score: {enabled: [{name: Mine}]}}"),
			`line 5: profiles[0].plugins.score.enabled[0]: there is no plugin "Mine": choose among DefaultBinder, DefaultPreemption,`,
		},
		{
			"a misspelt plugin", profile("plugins: {multiPoint: {disabled: [{name: ImageLocalty}]}}"),
			`profiles[0].plugins.multiPoint.disabled[0]: there is no plugin "ImageLocalty"`,
		},
		{
			"a plugin where it is not asked", profile("plugins: {permit: {enabled: [{name: NodePorts}]}}"),
			"profiles[0].plugins.permit.enabled[0]: plugin NodePorts has nothing to say there: remove it",
		},
		{
			"half a plugin", profile(`plugins: {preFilter: {disabled: [{name: InterPodAffinity}]}}`),
			"profiles[0].plugins.preFilter: plugin InterPodAffinity works at filter only if it is enabled there, too: enable it, or disable it " +
				"at filter",
		},
		{
			"scores of devices that are not looked for",
			profile(`plugins: {multiPoint: {disabled: [{name: DynamicResources}]}, preScore: {enabled: [{name: DynamicResources}]}, score: {enabled: [{name: DynamicResources}]}}`), "profiles[0].plugins.preFilter: plugin DynamicResources works at score only if it is enabled there, too",
		},
		{
			"no order", profile(`plugins: {queueSort: {disabled: [{name: "*"}]}}`),
			"profiles[0].plugins.queueSort: no plugin is enabled there: enable one",
		},
		{
			"nothing that binds", profile(`plugins: {bind: {disabled: [{name: "*"}]}}`),
			"profiles[0].plugins.bind: no plugin is enabled there: enable one",
		},
		{
			"a negative weight", profile("plugins: {score: {enabled: [{name: ImageLocality, weight: -1}]}}"),
			"profiles[0].plugins.score.enabled[0]: weight -1 is below 0",
		},
		{
			"groups of pods", profile("plugins: {placementScore: {enabled: [{name: ImageLocality}]}}"),
			"profiles[0].plugins.placementScore.enabled[0]: groups of pods are not scheduled as one: remove placementScore",
		},
		{
			"settings of an unknown plugin", profile("pluginConfig: [{name: Mine, args: {a: b}}]"),
			`profiles[0].pluginConfig[0]: plugin "Mine" has no settings, or does not exist: remove it`,
		},
		{"an unknown setting", profile("pluginConfig: [{name: NodeAffinity, args: {added: {}}}]"), `unknown field "added"`},
		{
			"other balanced resources",
			profile("pluginConfig: [{name: NodeResourcesBalancedAllocation, args: {resources: [{name: cpu}, {name: example.com/gpu}]}}]"),
			"profiles[0].pluginConfig[0].args.resources[1]: only cpu and memory are balanced: remove example.com/gpu",
		},
		{"a shape of storage", profile("pluginConfig: [{name: VolumeBinding, args: {shape: [{utilization: 0, score: 0}]}}]"), "shape"},
		{
			"a strategy without its shape",
			profile("pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: RequestedToCapacityRatio}}}]"),
			"profiles[0].pluginConfig[0].args.scoringStrategy",
		},
		{
			"a shape of another strategy",
			profile(
				"pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: LeastAllocated, requestedToCapacityRatio: {shape: " +
					"[{utilization: 0, score: 0}]}}}}]",
			),
			"profiles[0].pluginConfig[0].args.scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not " +
				"RequestedToCapacityRatio",
		},
		{
			"an extender without an address", head + "extenders: [{filterVerb: f}]\n",
			"line 3: extenders[0]: urlPrefix: it is needed, such as http://",
		},
		{"an extender without a question", head + "extenders: [{urlPrefix: 'http://x'}]\n", "extenders[0]: it is asked nothing"},
		{
			"an extender without a weight", head + "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p}]\n",
			"extenders[0].weight: Invalid value: 0",
		},
		{
			"a weight of no scores", head + "extenders: [{urlPrefix: 'http://x', filterVerb: p, weight: 1}]\n",
			"extenders[0]: weight: the extender gives no scores: remove it, or set prioritizeVerb",
		},
		{
			"an extender without time", head + "extenders: [{urlPrefix: 'http://x', filterVerb: p, httpTimeout: -1s}]\n",
			"extenders[0]: httpTimeout: it is below 0",
		},
		{
			"an extender's CA", head + "extenders: [{urlPrefix: 'https://x', filterVerb: p, tlsConfig: {caFile: /nonexistent}}]\n",
			"extenders[0]: ",
		},
		{
			"two that bind", head + "extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y', bindVerb: b}]\n",
			"only one extender can implement bind",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := load(t, test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "--scheduler-config /") {
				t.Errorf("error is %v, not of %q", err, test.want)
			}
		})
	}
	if _, err := Load("/nonexistent"); err == nil || !strings.HasPrefix(err.Error(), "--scheduler-config: open /nonexistent") {
		t.Error(err)
	}
}
