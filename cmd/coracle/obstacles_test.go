package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// fakeAPI answers each path with a document, and tells which selectors came with it.
func fakeAPI(t *testing.T, answers map[string]string, asked map[string]string) *api {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, exists := answers[r.URL.Path]
		if !exists {
			http.NotFound(w, r)
			return
		}
		if asked != nil {
			asked[r.URL.Path] = r.URL.Query().Get("labelSelector") + r.URL.Query().Get("fieldSelector")
		}
		_, _ = fmt.Fprint(w, answer)
	}))
	t.Cleanup(s.Close)
	client, err := openAPI(kubeconfigFor(t, s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.http.CloseIdleConnections)
	return client
}

// elsewhere is a place that has to be named.
var elsewhere = place{root: "/srv/c", state: "/run/c"}

const pressed = `{"items": [{"metadata": {"name": "boat"}, "status": {"conditions": [
	{"type": "DiskPressure", "status": "True", "message": "kubelet has disk pressure"},
	{"type": "MemoryPressure", "status": "False"},
	{"type": "Ready", "status": "True", "message": "kubelet is posting ready status"}]}}]}`

// Regression: on a disk with little room, up waited for a Deployment and ended without a reason.
func TestObstacles(t *testing.T) {
	for name, tc := range map[string]struct {
		nodes, deployment, pods, events string
		want                            []string // parts, one obstacle each
	}{
		"disk pressure": {
			nodes: pressed,
			pods: `{"metadata": {"name": "web-1", "uid": "u1"}, "status": {"phase": "Pending", "conditions": [
				{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}]}}`,
			events: `{"reason": "FailedScheduling", "message": "untolerated taint", "lastTimestamp": "2026-01-01T00:00:00Z"},
				{"reason": "Older", "message": "x", "eventTime": "2025-01-01T00:00:00.000000Z", "lastTimestamp": null}`,
			want: []string{
				"node boat has DiskPressure: kubelet has disk pressure: free some room, or say how much has to be free: 'coracle down --root /srv/c " +
					"--state /run/c', then 'coracle up --root /srv/c --state /run/c --eviction-hard",
				"pod default/web-1: it is not scheduled: Unschedulable: 0/1 nodes are available; its last event: FailedScheduling: untolerated taint",
			},
		},
		"evicted": {
			pods: `{"metadata": {"name": "web-1"}, "status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource"}}`,
			want: []string{"pod default/web-1: it failed: Evicted: The node was low on resource"},
		},
		"no image": {
			pods: `{"metadata": {"name": "web-1"}, "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
				"containerStatuses": [{"name": "web", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]}}`,
			want: []string{"pod default/web-1: container web waits: ImagePullBackOff: not found"},
		},
		"an init container fails": {
			pods: `{"metadata": {"name": "web-1"}, "status": {"phase": "Pending",
				"initContainerStatuses": [{"name": "first", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}],
				"containerStatuses": [{"name": "web", "state": {"waiting": {"reason": "PodInitializing"}}}]}}`,
			want: []string{"pod default/web-1: container first ended with 3: Error"},
		},
		"not ready": {
			pods: `{"metadata": {"name": "web-1"}, "status": {"phase": "Running", "containerStatuses": [{"name": "web", "state": {"running": {}}}]}}`,
			want: []string{"pod default/web-1: container web is not ready"},
		},
		"ready": {
			pods: `{"metadata": {"name": "web-1"}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}`,
		},
		"a quota": {
			deployment: `{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}`,
			want:       []string{"deployment default/web: FailedCreate: exceeded quota"},
		},
		"many pods": {
			pods: strings.TrimSuffix(strings.Repeat(`{"metadata": {"name": "web-1"}, "status": {"phase": "Pending"}},`, 7), ","),
			want: []string{"it is Pending", "it is Pending", "it is Pending", "deployment default/web: 4 further pods wait"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.nodes == "" {
				tc.nodes = `{"items": []}`
			}
			asked := map[string]string{}
			client := fakeAPI(t, map[string]string{
				"/api/v1/nodes": tc.nodes,
				"/apis/apps/v1/namespaces/default/deployments/web": fmt.Sprintf(`{"spec": {"selector": {"matchLabels": {"app": "web"}, "matchExpressions": [
					{"key": "tier", "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"}]}}, "status": {"conditions": [%s]}}`, tc.deployment),
				"/api/v1/namespaces/default/pods":   fmt.Sprintf(`{"items": [%s]}`, tc.pods),
				"/api/v1/namespaces/default/events": fmt.Sprintf(`{"items": [%s]}`, tc.events),
			}, asked)
			got, err := client.obstacles(t.Context(), elsewhere, []objectName{{"default", "web"}})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(got, tc.want, strings.Contains) {
				t.Errorf("%q, want %q", got, tc.want)
			}
			if want := "!old,app=web,tier in (a,b)"; asked["/api/v1/namespaces/default/pods"] != want {
				t.Errorf("pods are selected by %q, want %q", asked["/api/v1/namespaces/default/pods"], want)
			}
			// The error has them too.
			cause := errors.New("not available")
			err = client.telling(t.Context(), elsewhere, []objectName{{"default", "web"}}, func(string) {}, func() error { return cause })
			if !errors.Is(err, cause) || !slices.EqualFunc(strings.Split(err.Error(), "\n")[1:], tc.want, strings.Contains) {
				t.Errorf("the error is %q, want %q", err, tc.want)
			}
		})
	}
}

// Without an API server the error says what is known.
func TestTellingWithoutAnswer(t *testing.T) {
	client := fakeAPI(t, nil, nil)
	err := client.telling(t.Context(), elsewhere, nil, func(string) {}, func() error { return errors.New("not available") })
	if err == nil || !strings.HasPrefix(err.Error(), "not available\nno more is known: /api/v1/nodes: 404") {
		t.Errorf("the error is %q", err)
	}
	if err := client.telling(t.Context(), elsewhere, nil, func(string) {}, func() error { return nil }); err != nil {
		t.Error(err)
	}
}
