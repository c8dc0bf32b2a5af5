package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// ask decodes what the API server answers.
func (a *api) ask(ctx context.Context, path string, query url.Values, into any) error {
	body, err := a.open(ctx, path, query)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// condition is that of a Node, Deployment or Pod.
type condition struct {
	Type      string    `json:"type"`
	Status    string    `json:"status"`
	Reason    string    `json:"reason"`
	Message   string    `json:"message"`
	Heartbeat time.Time `json:"lastHeartbeatTime"` // of a Node
}

// roomRemedy is what to do where disk pressure keeps pods away.
func roomRemedy(p place) string {
	return fmt.Sprintf("free some room, or say how much has to be free: 'coracle down%s', then 'coracle up%[1]s --eviction-hard "+
		"memory.available<100Mi,nodefs.available<200Mi,imagefs.available<200Mi'", p.flags())
}

// troubles are a node's conditions that keep pods away or end them.
func (n *node) troubles(p place) []string {
	var all []string
	for _, c := range n.Status.Conditions {
		switch {
		case c.Type == "Ready" && c.Status != "True":
			all = append(all, fmt.Sprintf("node %s is not Ready: %s", n.Metadata.Name, c.Message))
		case strings.HasSuffix(c.Type, "Pressure") && c.Status == "True", c.Type == "NetworkUnavailable" && c.Status == "True":
			trouble := fmt.Sprintf("node %s has %s: %s", n.Metadata.Name, c.Type, c.Message)
			if c.Type == "DiskPressure" {
				trouble += ": " + roomRemedy(p)
			}
			all = append(all, trouble)
		}
	}
	return all
}

// selector is a Deployment's.
type selector struct {
	MatchLabels      map[string]string `json:"matchLabels"`
	MatchExpressions []struct {
		Key      string   `json:"key"`
		Operator string   `json:"operator"`
		Values   []string `json:"values"`
	} `json:"matchExpressions"`
}

// query is the selector as a request has it.
func (s selector) query() string {
	var all []string
	for key, value := range s.MatchLabels {
		all = append(all, key+"="+value)
	}
	for _, e := range s.MatchExpressions {
		switch e.Operator {
		case "In", "NotIn":
			all = append(all, fmt.Sprintf("%s %s (%s)", e.Key, strings.ToLower(e.Operator), strings.Join(e.Values, ",")))
		case "Exists":
			all = append(all, e.Key)
		case "DoesNotExist":
			all = append(all, "!"+e.Key)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

type deployment struct {
	Spec struct {
		Selector selector `json:"selector"`
	} `json:"spec"`
	Status struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type pod struct {
	Metadata struct {
		Name string `json:"name"`
		UID  string `json:"uid"`
	} `json:"metadata"`
	Status struct {
		Phase                 string            `json:"phase"`
		Reason                string            `json:"reason"`
		Message               string            `json:"message"`
		Conditions            []condition       `json:"conditions"`
		InitContainerStatuses []containerStatus `json:"initContainerStatuses"`
		ContainerStatuses     []containerStatus `json:"containerStatuses"`
	} `json:"status"`
}

type containerStatus struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
	State struct {
		Waiting *struct {
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"waiting"`
		Terminated *struct {
			ExitCode int    `json:"exitCode"`
			Reason   string `json:"reason"`
			Message  string `json:"message"`
		} `json:"terminated"`
	} `json:"state"`
}

// words joins what is not empty.
func words(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// waitsFor says what a pod waits for, "" if it is Ready.
func (p *pod) waitsFor() string {
	if p.Status.Phase == "Failed" {
		return words("it failed", p.Status.Reason, p.Status.Message)
	}
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type == "PodScheduled" && c.Status != "True":
			return words("it is not scheduled", c.Reason, c.Message)
		case c.Type == "Ready" && c.Status == "True":
			return ""
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		switch {
		case c.State.Waiting != nil:
			return words("container "+c.Name+" waits", c.State.Waiting.Reason, c.State.Waiting.Message)
		case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
			return words(fmt.Sprintf("container %s ended with %d", c.Name, c.State.Terminated.ExitCode), c.State.Terminated.Reason,
				c.State.Terminated.Message)
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if !c.Ready {
			return "container " + c.Name + " is not ready"
		}
	}
	return "it is " + p.Status.Phase
}

// lastEvent is what was last said of an object, "" if nothing was.
func (a *api) lastEvent(ctx context.Context, namespace, uid string) (string, error) {
	var list struct {
		Items []struct {
			Reason  string    `json:"reason"`
			Message string    `json:"message"`
			Last    time.Time `json:"lastTimestamp"`
			Time    time.Time `json:"eventTime"`
		} `json:"items"`
	}
	query := url.Values{"fieldSelector": {"involvedObject.uid=" + uid}}
	if err := a.ask(ctx, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/events", query, &list); err != nil {
		return "", err
	}
	said, latest := "", time.Time{}
	for _, e := range list.Items {
		at := e.Last
		if at.IsZero() {
			at = e.Time
		}
		if !at.Before(latest) {
			said, latest = words(e.Reason, e.Message), at
		}
	}
	return said, nil
}

// mostPods is how many pods of a Deployment are described.
const mostPods = 3

// obstacles returns why Deployments do not become available, as `kubectl describe` of nodes and
// pods would show it. Problems of nodes come first.
func (a *api) obstacles(ctx context.Context, p place, deployments []objectName) ([]string, error) {
	nodes, err := a.nodes(ctx)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, n := range nodes {
		all = append(all, n.troubles(p)...)
	}
	for _, d := range deployments {
		found, err := a.obstaclesOf(ctx, d)
		if err != nil {
			return all, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (a *api) obstaclesOf(ctx context.Context, name objectName) ([]string, error) {
	namespace := url.PathEscape(name.Namespace)
	var d deployment
	if err := a.ask(ctx, "/apis/apps/v1/namespaces/"+namespace+"/deployments/"+url.PathEscape(name.Name), nil, &d); err != nil {
		return nil, err
	}
	var pods struct {
		Items []pod `json:"items"`
	}
	if err := a.ask(ctx, "/api/v1/namespaces/"+namespace+"/pods",
		url.Values{"labelSelector": {d.Spec.Selector.query()}, "limit": {"500"}}, &pods); err != nil {
		return nil, err
	}
	var all []string
	for _, c := range d.Status.Conditions {
		if c.Type == "ReplicaFailure" && c.Status == "True" {
			all = append(all, words(fmt.Sprintf("deployment %s/%s", name.Namespace, name.Name), c.Reason, c.Message))
		}
	}
	left := 0
	for _, p := range pods.Items {
		waits := p.waitsFor()
		switch {
		case waits == "":
			continue
		case len(all) >= mostPods:
			left++
			continue
		}
		obstacle := fmt.Sprintf("pod %s/%s: %s", name.Namespace, p.Metadata.Name, waits)
		said, err := a.lastEvent(ctx, name.Namespace, p.Metadata.UID)
		if err != nil {
			return all, err
		}
		if said != "" && !strings.Contains(obstacle, said) {
			obstacle += "; its last event: " + said
		}
		all = append(all, obstacle)
	}
	if left > 0 {
		all = append(all, fmt.Sprintf("deployment %s/%s: %d further pods wait", name.Namespace, name.Name, left))
	}
	return all, nil
}

// lookAgain is how often up looks what a Deployment waits for, and how long it waits before it says
// so.
const lookAgain = 3 * time.Second

// telling calls wait. Meanwhile it passes what the Deployments wait for to tell, whenever that
// changes, and adds it to wait's error.
func (a *api) telling(ctx context.Context, p place, deployments []objectName, tell func(string), wait func() error) error {
	done, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		a.keepTelling(ctx, p, deployments, tell, done)
	}()
	err := wait()
	close(done)
	<-told
	if err == nil {
		return nil
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), longestTry)
	defer cancel()
	all, oerr := a.obstacles(look, p, deployments)
	if oerr != nil {
		all = append(all, "no more is known: "+oerr.Error())
	}
	if len(all) > 0 {
		err = fmt.Errorf("%w\n%s", err, strings.Join(all, "\n"))
	}
	return err
}

func (a *api) keepTelling(ctx context.Context, p place, deployments []objectName, tell func(string), done <-chan struct{}) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	var before []string
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		look, cancel := context.WithTimeout(ctx, longestTry)
		now, err := a.obstacles(look, p, deployments)
		cancel()
		if err != nil {
			continue // the next look may succeed, and the error at the end says what is missing
		}
		for _, obstacle := range now {
			if !slices.Contains(before, obstacle) {
				tell(obstacle)
			}
		}
		before = now
	}
}
