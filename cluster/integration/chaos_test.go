package integration

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

var (
	chaosFor  = flag.Duration("chaos", sample, "how long TestChaos kills")
	chaosSeed = flag.Uint64("seed", 0, "what TestChaos does (0: another each time)")
)

const (
	// sample is what runs alongside other tests, which may hold up all for a moment: the disk, too.
	// One of its quiet times may be disturbed, none of a longer run.
	sample = 12 * time.Second
	// late is how long after the last event connections may still go to an endpoint that is gone,
	// without the time that the programs wait for a processor, which others of the machine use:
	// latest with that.
	late, latest = time.Second, 10 * time.Second
	// quiet is how long nothing happens then: every request that begins in this time must succeed.
	quiet = 500 * time.Millisecond
	// unanswered is when a connection or a request counts as one to an endpoint that is gone.
	unanswered = 10 * time.Second
	// pace is between two requests of a client.
	pace = 100 * time.Millisecond
)

// chaos is what a hundred clients do, on the node and on another machine.
type chaos struct {
	t       *testing.T
	ns      string
	machine *testnet.Node
	stop    chan struct{}
	stopped sync.Once
	clients sync.WaitGroup

	kept, asked atomic.Int64 // exchanges on connections that stay, and requests
	underWay    sync.RWMutex // read-locked by each request
	mu          sync.Mutex
	failed      []failure
	good        []time.Time // when requests began that succeeded
}

type failure struct {
	began time.Time
	err   error
}

// The cluster process, in which the proxy is, and coracled are killed, and pods deleted, at random,
// while clients talk through Services. No connection to a pod that stays is lost. None goes to a
// pod that is gone a second after that, or after the programs serve again.
func TestChaos(t *testing.T) {
	_, ns := namespace(t)
	ctx, cancel := context.WithTimeout(t.Context(), *chaosFor+patience)
	defer cancel()
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := &chaos{t: t, ns: ns, machine: testnet.Here(t), stop: make(chan struct{})}
	t.Cleanup(c.end) // before the networks go
	boat.kill(t)     // a proxy knows the node's addresses from its start
	stays, moves := c.serve(ctx, "stays", 2), c.serve(ctx, "moves", 4)
	c.deletedPodsAreFound(ctx)

	inside, outside := &c.machine.Space, c.machine.Outside
	for _, s := range []struct {
		from    *testnet.Space
		address string
		stays   bool
		clients int
	}{
		{inside, service(stays), true, 25},
		{outside, nodePort(stays), true, 25},
		{inside, service(moves), false, 25},
		{outside, nodePort(moves), false, 25},
	} {
		for range s.clients {
			if s.stays {
				c.keep(s.from, s.address)
			} else {
				c.ask(s.from, s.address)
			}
		}
	}
	var windows []time.Time // when quiet time starts
	killed, deleted := map[string]int{}, 0
	for began := time.Now(); time.Since(began) < *chaosFor || len(windows) < 3 || deleted == 0; {
		gone, names := c.delete(ctx, random)
		deleted += len(names)
		victims := []string{"coracle-kube", "coracled"}
		random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		victims = victims[:1+random.IntN(len(victims))]
		for _, v := range victims {
			time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond) // what the seed says, not a wait
			killed[v]++
			c.kill(v)
		}
		if err := boat.up(); err != nil {
			t.Fatal(err)
		}
		gone.Wait()
		c.late()
		windows = append(windows, time.Now())
		c.wait(quiet)
		c.answered()
		t.Logf("%v killed, pods %v deleted; %d exchanges, %d requests", victims, names, c.kept.Load(), c.asked.Load())
		eventually(ctx, t, "new pods are ready", func() (bool, error) {
			d, err := boat.kube.AppsV1().Deployments(ns).Get(ctx, "moves", metav1.GetOptions{})
			return err == nil && d.Status.ReadyReplicas == *d.Spec.Replicas && d.Status.Replicas == *d.Spec.Replicas, err
		})
	}
	c.end()
	c.judge(windows)
	if deleted == 0 || killed["coracle-kube"]+killed["coracled"] < 3 {
		t.Errorf("%v killed and %d pods deleted, which is too little", killed, deleted)
	}
}

func service(s *corev1.Service) string {
	return net.JoinHostPort(s.Spec.ClusterIP, fmt.Sprint(s.Spec.Ports[0].Port))
}

func nodePort(s *corev1.Service) string {
	return net.JoinHostPort(testnet.Node4, fmt.Sprint(s.Spec.Ports[0].NodePort))
}

// serve makes a Service with pods.
func (c *chaos) serve(ctx context.Context, name string, pods int32) *corev1.Service {
	c.t.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &pods, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](5), Containers: []corev1.Container{{Name: "web", Image: image}},
		}},
	}}
	if _, err := boat.kube.AppsV1().Deployments(c.ns).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Selector: labels, Ports: []corev1.ServicePort{{Port: 8080}},
	}}
	s, err := boat.kube.CoreV1().Services(c.ns).Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	eventually(ctx, c.t, "the pods of "+name+" are ready", func() (bool, error) {
		d, err := boat.kube.AppsV1().Deployments(c.ns).Get(ctx, name, metav1.GetOptions{})
		return err == nil && d.Status.ReadyReplicas == pods, err
	})
	eventually(ctx, c.t, name+" answers the node", func() (bool, error) {
		err := c.request(&c.machine.Space, service(s))
		return err == nil, err
	})
	eventually(ctx, c.t, name+" answers the machine outside", func() (bool, error) {
		err := c.request(c.machine.Outside, nodePort(s))
		return err == nil, err
	})
	return s
}

// request asks once, by a connection of its own.
func (c *chaos) request(from *testnet.Space, address string) error {
	conn, err := from.DialWithin("tcp", address, unanswered)
	if err != nil {
		return err
	}
	defer conn.Close()
	return exchange(conn, bufio.NewReader(conn))
}

func exchange(conn net.Conn, r *bufio.Reader) error {
	_ = conn.SetDeadline(time.Now().Add(unanswered))
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && !strings.HasPrefix(string(body), "Hello from Coracle") {
		err = fmt.Errorf("the answer is %q", body)
	}
	return err
}

// run runs a client until the end: step after step.
func (c *chaos) run(step func()) {
	c.clients.Add(1)
	go func() {
		defer c.clients.Done()
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for {
			step()
			select {
			case <-c.stop:
				return
			case <-tick.C:
			}
		}
	}()
}

// end ends the clients.
func (c *chaos) end() {
	c.stopped.Do(func() { close(c.stop) })
	c.clients.Wait()
}

// keep runs a client with one connection, which must not be lost.
func (c *chaos) keep(from *testnet.Space, address string) {
	c.t.Helper()
	conn, err := from.DialWithin("tcp", address, unanswered)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	r, lost := bufio.NewReader(conn), false
	c.run(func() {
		if lost {
			return
		}
		if err := exchange(conn, r); err != nil {
			lost = true
			c.t.Errorf("%v: an established connection from %s to %s is lost: %v", time.Now().Format(time.TimeOnly), from.Name, address, err)
			return
		}
		c.kept.Add(1)
	})
}

// ask runs a client that makes a connection for each request.
func (c *chaos) ask(from *testnet.Space, address string) {
	c.run(func() {
		c.underWay.RLock()
		defer c.underWay.RUnlock()
		began := time.Now()
		err := c.request(from, address)
		c.asked.Add(1)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil {
			c.failed = append(c.failed, failure{began, fmt.Errorf("from %s after %v: %w", from.Name, time.Since(began).Round(time.Millisecond),
				err)})
		} else {
			c.good = append(c.good, began)
		}
	})
}

// answered returns when the requests that are under way have ended. On a busy machine they take
// longer than usual, and must not meet the next event.
func (c *chaos) answered() {
	c.underWay.Lock()
	defer c.underWay.Unlock()
}

// judge looks for requests in quiet times: each must have succeeded.
func (c *chaos) judge(windows []time.Time) {
	c.t.Helper()
	within := func(at, window time.Time) bool { return at.After(window) && at.Before(window.Add(quiet)) }
	disturbed := 0
	for i, w := range windows {
		bad := false
		if !slices.ContainsFunc(c.good, func(at time.Time) bool { return within(at, w) }) {
			c.t.Logf("no request succeeded in quiet time %d", i)
			bad = true
		}
		for _, f := range c.failed {
			if within(f.began, w) {
				c.t.Logf("in quiet time %d, %v after its begin: %v", i, f.began.Sub(w).Round(time.Millisecond), f.err)
				bad = true
			}
		}
		if bad {
			disturbed++
		}
	}
	if disturbed > 1 || disturbed == 1 && *chaosFor > sample {
		c.t.Errorf("%d of %d quiet times are disturbed", disturbed, len(windows))
	}
	c.t.Logf("%d exchanges on connections that stay; of %d requests, %d failed at other times", c.kept.Load(), c.asked.Load(), len(c.failed))
}

// delete deletes some pods of the Service whose pods move. The group ends when they do not serve
// any more.
func (c *chaos) delete(ctx context.Context, random *rand.Rand) (gone *sync.WaitGroup, names []string) {
	c.t.Helper()
	gone = &sync.WaitGroup{}
	pods, err := boat.kube.CoreV1().Pods(c.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=moves"})
	if err != nil {
		c.t.Fatal(err)
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.PodIP == "" })
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Status.PodIP, b.Status.PodIP) })
	random.Shuffle(len(pods.Items), func(i, j int) { pods.Items[i], pods.Items[j] = pods.Items[j], pods.Items[i] })
	for _, p := range pods.Items[:min(len(pods.Items), random.IntN(3))] {
		if err := boat.kube.CoreV1().Pods(c.ns).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
			c.t.Fatal(err)
		}
		names = append(names, p.Name)
		gone.Go(func() { c.awaitGone(ctx, p) })
	}
	return gone, names
}

// awaitGone returns when a deleted pod does not serve any more. Its address may be another pod's
// then.
func (c *chaos) awaitGone(ctx context.Context, p corev1.Pod) {
	for c.request(&c.machine.Space, net.JoinHostPort(p.Status.PodIP, "8080")) == nil {
		is, err := boat.kube.CoreV1().Pods(c.ns).Get(ctx, p.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		if ctx.Err() != nil {
			c.t.Errorf("pod %s, deleted, serves: %v, %v", p.Name, is, err)
			return
		}
		c.wait(20 * time.Millisecond)
	}
}

// deletedPodsAreFound shows that a request to a pod that is gone fails, so that one through a
// Service would.
func (c *chaos) deletedPodsAreFound(ctx context.Context) {
	c.t.Helper()
	gone, names := c.delete(ctx, rand.New(rand.NewPCG(1, 1)))
	if len(names) == 0 {
		c.t.Fatal("no pod is deleted")
	}
	gone.Wait() // until requests to them fail
}

// wait lets time pass: the test is about what happens in a time.
func (c *chaos) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.t.Context().Done():
	}
}

// late waits for as long as connections may still go to endpoints that are gone.
func (c *chaos) late() {
	c.t.Helper()
	began, before := time.Now(), c.delayed()
	for c.t.Context().Err() == nil && time.Since(began) < latest {
		left := late + max(c.delayed()-before, 0) - time.Since(began)
		if left <= 0 {
			return
		}
		c.wait(left)
	}
}

// delayed is how long the programs' threads have waited for a processor
// (Documentation/scheduler/sched-stats.rst).
func (c *chaos) delayed() (sum time.Duration) {
	c.t.Helper()
	for _, pid := range append(processes(c.t, bin("coracle-kube")), processes(c.t, bin("coracled"))...) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			c.t.Fatal(err)
		}
		for _, file := range threads {
			var ran, waited time.Duration
			data, err := os.ReadFile(file)
			if err != nil { // the thread has ended
				continue
			}
			if _, err := fmt.Sscan(string(data), &ran, &waited); err != nil {
				c.t.Fatalf("%s has %q: %v", file, data, err)
			}
			sum += waited
		}
	}
	return sum
}

// kill ends a program with SIGKILL, without a wait for the next one.
func (c *chaos) kill(program string) {
	c.t.Helper()
	killed := 0
	for _, pid := range processes(c.t, bin(program)) {
		p, err := os.FindProcess(pid)
		if err == nil {
			err = p.Kill()
		}
		if err == nil {
			killed++
		} else if !errors.Is(err, os.ErrProcessDone) { // what it starts is itself for a moment
			c.t.Errorf("kill %s with pid %d: %v", program, pid, err)
		}
	}
	if killed == 0 {
		c.t.Errorf("no %s is there to be killed", program)
	}
}
