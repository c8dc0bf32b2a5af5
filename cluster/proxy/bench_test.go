package proxy

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/proxy/rules"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// BenchmarkFullSync is from objects that informers have to all rules in force, or to what is
// wanted, without the kernel.
func BenchmarkFullSync(b *testing.B) {
	slog.SetLogLoggerLevel(slog.LevelError)
	api := fake.NewClientset()
	for _, count := range []int{1000, 10000, 45000} {
		services, slices := testkit.Services(count)
		newProxy := func() *Proxy {
			p, err := New(&client.Set{Kube: api, Informers: client.NewInformers(api)}, Options{Table: tableName, NodeName: "here"})
			if err != nil {
				b.Fatal(err)
			}
			for _, f := range p.families {
				f.serveHealth(p.NodeName, nil)
			}
			runtime.GC()
			return p
		}
		tell := func(p *Proxy) {
			for i := range services {
				p.services().OnAdd(services[i], true)
				p.slices().OnAdd(slices[i], true)
			}
		}
		b.Run(fmt.Sprint(count, "/translation"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				p := newProxy()
				b.StartTimer()
				tell(p)
				change := rules.Change{Ports: map[rules.Key]*rules.Port{}, Pods: rules.Pods{}}
				for _, f := range p.families {
					f.update(nil, true, &change, nil)
				}
				if len(change.Ports) != count {
					b.Fatalf("%d ports", len(change.Ports))
				}
			}
		})
		b.Run(fmt.Sprint(count, "/rules"), func(b *testing.B) {
			b.ReportAllocs()
			node := testnet.New(b)
			for b.Loop() {
				b.StopTimer()
				p := newProxy()
				var table *rules.Table
				var err error
				node.Within(func() { table, err = rules.Open(rules.Config{Name: tableName}) })
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if err := table.Refuse(); err != nil {
					b.Fatal(err)
				}
				tell(p)
				if err := p.sync(b.Context(), table); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				_ = table.Close()
				node.Within(func() {
					if err := Cleanup(tableName); err != nil {
						b.Error(err)
					}
				})
				b.StartTimer()
			}
		})
	}
}

// BenchmarkChangeFromAPI is from the event of a change of an EndpointSlice to the rule in force,
// among Services with ten endpoints each. It also says how much memory the proxy takes, with the
// informers' objects.
func BenchmarkChangeFromAPI(b *testing.B) {
	slog.SetLogLoggerLevel(slog.LevelError)
	for _, count := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			api := fake.NewClientset()
			changes := watch.NewRaceFreeFake() // the fake API server takes milliseconds for an update
			api.PrependWatchReactor("endpointslices", func(k8stesting.Action) (bool, watch.Interface, error) { return true, changes, nil })
			services, all := testkit.Services(count)
			for i := range services {
				if err := api.Tracker().Add(services[i]); err != nil {
					b.Fatal(err)
				}
				if err := api.Tracker().Add(all[i]); err != nil {
					b.Fatal(err)
				}
			}
			c := &testCluster{Node: testnet.New(b), t: b, api: api, did: make(chan struct{}, 1)}
			before := heap()
			c.run(nil)
			<-c.did
			held := heap() - before
			var took []time.Duration
			skip := 0
			for b.Loop() {
				skip = 1 - skip
				s := testkit.Endpoints(count/2, skip)
				began := time.Now()
				changes.Modify(s)
				<-c.did
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(held)/(1<<20), "MiB")
		})
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
