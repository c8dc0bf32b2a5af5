package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestCompareNamesThePlace(t *testing.T) {
	for name, c := range map[string]struct {
		ours, upstream any
		want           string
	}{
		"equal":          {map[string]any{"a": int64(1)}, map[string]any{"a": int64(1)}, "[]"},
		"value":          {map[string]any{"a": "x"}, map[string]any{"a": "y"}, `[o a: "x" / "y"]`},
		"only upstream":  {map[string]any{}, map[string]any{"a": "y"}, `[o a: (absent) / "y"]`},
		"item":           {[]any{"a", "b"}, []any{"a", "c"}, `[o[1]: "b" / "c"]`},
		"length":         {[]any{"a"}, []any{}, `[o: ["a"] / []]`},
		"type":           {map[string]any{}, "a", `[o: {} / "a"]`},
		"line":           {lines{"a": 2}, lines{"a": 1, "b": 1}, "[o: a / (absent) o: (absent) / b]"},
		"nil and absent": {map[string]any{"a": nil}, map[string]any{}, "[o a: null / (absent)]"},
	} {
		t.Run(name, func(t *testing.T) {
			got := fmt.Sprint(compare(map[string]any{"o": c.ours}, map[string]any{"o": c.upstream}))
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestReportFailsOnUnknownAndStale(t *testing.T) {
	known := explanations{{line: 1, pattern: regexp.MustCompile("^a: ")}}
	for name, c := range map[string]struct {
		found []difference
		said  string
	}{
		"known":   {[]difference{{"a", "1", "2"}}, ""},
		"unknown": {[]difference{{"a", "1", "2"}, {"b", "1", "2"}}, "b: 1 / 2"},
		"stale":   {nil, "known.txt:1: no longer occurs: ^a: "},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := known.report(&out, c.found)
			if (err != nil) != (c.said != "") || !strings.Contains(out.String(), c.said) {
				t.Errorf("got %v and %q, want %q", err, &out, c.said)
			}
		})
	}
}

func TestKnownCanBeRead(t *testing.T) {
	if all, err := readKnown(); err != nil || len(all) == 0 {
		t.Error(all, err)
	}
}

func TestNormal(t *testing.T) {
	service := &unstructured.Unstructured{Object: map[string]any{
		"kind": "Service", "metadata": map[string]any{"name": "web", "namespace": "n"},
		"spec": map[string]any{"clusterIPs": []any{"10.96.3.4"}, "ports": []any{map[string]any{"nodePort": int64(30123)}}},
	}}
	n := newNormal([]*unstructured.Unstructured{service})
	for in, want := range map[string]string{
		"web-557fc46549-2xkbt":                      "web-557fc46549-<random>", // the template's hash stays
		"web-557fc46549":                            "web-557fc46549",
		"kube-api-access-spwtx":                     "kube-api-access-<random>",
		"at 2026-11-20T13:00:00Z on node-a":         "at <time> on <node>",
		"to 10.96.3.4":                              "to <ip of Service n/web>",
		"6d4f8db6-1111-2222-3333-444455556666 5m3s": "<uid> <age>",
		"Resource Version:    660":                  "Resource Version: <version>",
	} {
		if got := n.line(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
	if got := n.value(int64(30123)); got != "<port 0 of Service n/web>" {
		t.Errorf("node port: got %v", got)
	}
}

func TestOnlyTheFirstFailureToScheduleIsCompared(t *testing.T) {
	event := func(pod, reason, at string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"reason": reason, "eventTime": at, "involvedObject": map[string]any{"uid": pod}}}
	}
	var got []string
	for _, e := range withoutFolded([]*unstructured.Unstructured{
		event("a", "FailedScheduling", "3"), event("a", "FailedScheduling", "2"), event("a", "Scheduled", "4"),
		event("b", "FailedScheduling", "5"), event("a", "Scheduled", "6"),
	}) {
		got = append(got, e.Object["eventTime"].(string))
	}
	if fmt.Sprint(got) != "[2 4 5 6]" {
		t.Errorf("left are those at %v", got)
	}
}
