// Package hook runs the lifecycle hooks of containers.
package hook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/util/format"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
)

// hookClient calls HTTP hooks. Like probes it checks no certificates: pods have none that the
// node could know.
var hookClient = &http.Client{
	Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
	CheckRedirect: httpprobe.RedirectChecker(false), // to the same host
}

// mostOfAnswer is how much of a hook's answer is read, so that the connection ends in order.
const mostOfAnswer = 10 << 10

// Runner runs hooks.
type Runner struct {
	// Exec runs a command in a container.
	Exec     func(ctx context.Context, id string, command []string, timeout time.Duration) ([]byte, error)
	Recorder record.EventRecorder
}

// Target is the container that a hook is for.
type Target struct {
	Pod       *v1.Pod
	Container *v1.Container
	ID        string
	IP        string // the pod's; "" for none
}

// Run runs a lifecycle hook to its end. The message tells what went wrong, and may hold secrets.
func (r *Runner) Run(ctx context.Context, t Target, h *v1.LifecycleHandler) (message string, err error) {
	pod, c := t.Pod, t.Container
	switch {
	case h.Exec != nil:
		output, err := r.Exec(ctx, t.ID, h.Exec.Command, 0)
		if err != nil {
			return fmt.Sprintf("Exec lifecycle hook (%v) for Container %q in Pod %q failed - error: %v, message: %q",
				h.Exec.Command, c.Name, format.Pod(pod), err, output), err
		}
	case h.HTTPGet != nil:
		if err := r.http(ctx, t, h.HTTPGet); err != nil {
			return fmt.Sprintf("HTTP lifecycle hook (%s) for Container %q in Pod %q failed - error: %v",
				h.HTTPGet.Path, c.Name, format.Pod(pod), err), err
		}
	case h.Sleep != nil:
		timer := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			err := errors.New("container terminated before sleep hook finished")
			return fmt.Sprintf("Sleep lifecycle hook (%d) for Container %q in Pod %q failed - error: %v",
				h.Sleep.Seconds, c.Name, format.Pod(pod), err), err
		}
	default:
		err := fmt.Errorf("invalid handler: %v", h)
		return fmt.Sprintf("Cannot run handler: %v", err), err
	}
	return "", nil
}

// http sends the request. Whatever is answered is fine; an HTTPS hook whose server speaks HTTP
// is called that way, as before Kubernetes knew the scheme.
func (r *Runner) http(ctx context.Context, t Target, h *v1.HTTPGetAction) error {
	host := h.Host
	if host == "" {
		if host = t.IP; host == "" {
			return errors.New("failed to find networking container: the pod has no address")
		}
	}
	req, err := httpprobe.NewRequestForHTTPGetAction(h, t.Container, host, "lifecycle")
	if err != nil {
		return err
	}
	err = send(req.WithContext(ctx))
	if err == nil || !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return err
	}
	req = req.Clone(ctx)
	req.URL.Scheme = "http"
	req.Header.Del("Authorization")
	if send(req) != nil {
		return err
	}
	r.Recorder.Eventf(t.Pod, v1.EventTypeWarning, "LifecycleHTTPFallback",
		"request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", req.URL.Host)
	return nil
}

func send(req *http.Request) error {
	resp, err := hookClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, mostOfAnswer)
	return nil
}
