package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// Join is what a machine has to do with a cluster elsewhere, whose node it is or is to be.
type Join struct {
	Server string // URL of the API server
	Err    string // why it cannot be reached
	// Ahead is how much this machine's clock is ahead of the server's.
	Ahead time.Duration
	// KubeletPort is that of a kubelet to come, 0 for none; Busy says that another process has it.
	KubeletPort int
	Busy        bool
}

const (
	joinPatience = 5 * time.Second
	// clockSlack is what certificates and tokens bear.
	clockSlack = 2 * time.Minute
)

// askServer finds out whether a machine can be a node of a cluster.
func askServer(ctx context.Context, server string, kubeletPort int) *Join {
	j := &Join{Server: server, KubeletPort: kubeletPort}
	if kubeletPort != 0 {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(kubeletPort)))
		if err == nil {
			_ = l.Close()
		}
		j.Busy = errors.Is(err, syscall.EADDRINUSE)
	}
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	// Only the time is read: who answers is looked at when there are credentials.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/readyz", nil)
	if err != nil {
		j.Err = err.Error()
		return j
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil {
			err = cause
		}
		j.Err = err.Error()
		return j
	}
	_ = resp.Body.Close()
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		j.Ahead = time.Since(at).Truncate(time.Second)
	}
	return j
}

func checkJoin(f *Facts) []Finding {
	if f.Join == nil {
		return nil
	}
	j, check := f.Join, "cluster"
	var all []Finding
	add := func(message, remedy string) { all = append(all, Finding{check, Error, message, remedy}) }
	if j.Err != "" {
		add(fmt.Sprintf("the cluster's API server at %s cannot be reached: %s", j.Server, j.Err),
			"see whether the address is right, the server runs, and no firewall between both drops TCP to that port")
	}
	if j.Ahead.Abs() > clockSlack {
		way := "ahead of"
		if j.Ahead < 0 {
			way = "behind"
		}
		add(fmt.Sprintf("this machine's clock is %s %s that of the cluster", j.Ahead.Abs(), way),
			"have a time service set the clocks of both, such as systemd-timesyncd or chrony")
	}
	if j.Busy {
		add(fmt.Sprintf("another process has port %d, which is the kubelet's", j.KubeletPort),
			"end that process, another kubelet perhaps, or choose another --kubelet-port")
	}
	if len(all) == 0 {
		all = one(check, OK, "the cluster's API server at "+j.Server+" can be reached", "")
	}
	return all
}

// Preflight judges whether this machine can become a node of the cluster at p.Server. It asks no
// one but the API server, so that it takes a moment.
func Preflight(ctx context.Context, p Places) []Finding {
	f, c := gatherHost(p)
	f.Join = askServer(ctx, p.Server, p.KubeletPort)
	f.Refusals, _ = readRefusals(ctx, c.Network.Name, p.sharing(c).beforeJoin()) // what cannot be read does not keep a node from joining
	var all []Finding
	for _, check := range []func(*Facts) []Finding{
		checkUser, checkKernel, checkModules, checkNamespaces, checkCgroups, checkLimits, checkConfig, checkShim, checkDisks, checkJoin,
		checkRefusals,
	} {
		all = append(all, check(f)...)
	}
	return all
}
