// Command cyclonus runs the policy cases of github.com/mattfenwick/cyclonus against a cluster and
// writes what came of them. The cases, the expectations and the probes are cyclonus' own. Its own
// command line cannot have its worker probe from inside the pods, which is ten times faster, and
// makes five calls of the API per second.
//
//	cyclonus -results FILE [-only REGEXP]
//
// Each line of FILE is a result, a number, a name and a remark, with tabs between them.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	results := flag.String("results", "", "file to write the results to")
	only := flag.String("only", "", "regular expression of the cases to run, as NUMBER NAME [TAGS]")
	list := flag.Bool("list", false, "only print the cases")
	flag.Parse()
	if err := run(*results, *only, *list); err != nil {
		fmt.Fprintln(os.Stderr, "cyclonus:", err)
		os.Exit(1)
	}
}

var (
	namespaces = []string{"x", "y", "z"}
	pods       = []string{"a", "b", "c"}
	ports      = []int{80, 81}
	// The suite's programs need SCTP sockets, which the kernel may not have.
	protocols = []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP}
)

// A pod's connections to itself never fail for a policy, as Kubernetes documents. Cyclonus expects
// them to.
const ignoreLoopback = true

func run(file, only string, list bool) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if list {
		for i, c := range cases("10.0.0.1") {
			fmt.Println(line(i, c))
		}
		return nil
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	cluster, err := connect()
	if err != nil {
		return err
	}
	const podSeconds, batch = 120, true
	resources, err := probe.NewDefaultResources(cluster, namespaces, pods, ports, protocols, nil, podSeconds, batch, "")
	if err != nil {
		return fmt.Errorf("make the pods: %w", err)
	}
	zc, err := resources.GetPod("z", "c")
	if err != nil {
		return err
	}
	interpreter := connectivity.NewInterpreter(cluster, resources, &connectivity.InterpreterConfig{
		ResetClusterBeforeTestCase: true, VerifyClusterStateBeforeTestCase: true, BatchJobs: batch,
		// A busy machine may not answer a probe in its second. A case that was repeated says so.
		KubeProbeRetries: 1, PerturbationWaitSeconds: 1, IgnoreLoopback: ignoreLoopback,
	})
	printer := &connectivity.Printer{IgnoreLoopback: ignoreLoopback}
	for i, c := range cases(zc.IP) {
		if !wanted.MatchString(line(i, c)) {
			continue
		}
		result := interpreter.ExecuteTestCase(c)
		state, remark := "passed", ""
		switch {
		case result.Err != nil:
			state, remark = "failed", result.Err.Error()
		case !result.Passed(ignoreLoopback):
			state, remark = "failed", wrong(result, true)
		default:
			remark = wrong(result, false)
		}
		if result.Err == nil {
			printer.PrintTestCaseResult(result)
		}
		remark = strings.ReplaceAll(remark, "\n", " ")
		if _, err := fmt.Fprintf(out, "%s\t%d\t%s\t%s\n", state, i+1, name(c), remark); err != nil {
			return err
		}
	}
	printer.PrintSummary()
	return out.Close()
}

// connect is a client without the usual limit of requests: each case takes some fifty.
func connect() (*kube.Kubernetes, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &kube.Kubernetes{ClientSet: set, RestConfig: config}, nil
}

// cases are all of cyclonus', also those that its command line leaves out by default.
func cases(ip string) []*generator.TestCase {
	const allowDNS = true // by egress policies: services are probed by name
	return generator.NewTestCaseGenerator(allowDNS, ip, namespaces, nil, nil).GenerateTestCases()
}

// line is a case as -only sees it.
func line(i int, c *generator.TestCase) string {
	return fmt.Sprintf("%d %s [%s]", i+1, name(c), strings.Join(c.Tags.Keys(), " "))
}

// name is a description on one line.
func name(c *generator.TestCase) string { return strings.Join(strings.Fields(c.Description), " ") }

// wrong names the first few probes that ended otherwise than expected, at the last try or at the
// first one.
func wrong(r *connectivity.Result, last bool) string {
	var all []string
	for i, step := range r.Steps {
		got := step.KubeProbes[0]
		if last {
			got = step.LastKubeProbe()
		}
		for _, key := range got.Wrapped.Keys() {
			if ignoreLoopback && key.From == key.To {
				continue
			}
			want := step.SimulatedProbe.Get(key.From, key.To).JobResults
			for port, result := range got.Get(key.From, key.To).JobResults {
				if w := want[port]; w == nil || w.Combined != result.Combined {
					all = append(all, fmt.Sprintf("step %d: %s to %s %s was %s", i+1, key.From, key.To, port, result.Combined))
				}
			}
		}
	}
	slices.Sort(all)
	const most = 3
	if more := len(all) - most; more > 0 {
		all = append(all[:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, "; ")
}
