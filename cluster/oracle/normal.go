package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// normal gives what is another in each cluster by its nature a name that is the same in all. What
// is derived from the content, like a pod template's hash, stays: it has to be equal.
type normal struct {
	names *strings.Replacer
	used  map[string]int
}

// patterns are what needs no object to be recognised.
var patterns = []struct {
	is *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| \+0000 UTC)`), "<time>"},
	{regexp.MustCompile(`(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} [\d:]+ [+-]\d{4}`), "<time>"},
	// The alphabet of apimachinery's rand.String, which metadata.generateName is completed with.
	{regexp.MustCompile(`\b([a-z0-9]+(?:-[a-z0-9]+)*)-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "$1-<random>"},
	{regexp.MustCompile(`\(combined from similar events\): `), ""},
	{regexp.MustCompile(`\(\d+ in total\)`), "(<count> in total)"},
	{regexp.MustCompile(`Resource Version: +\d+`), "Resource Version: <version>"},
	// Ours is one program.
	{regexp.MustCompile(`^(kube-apiserver|kube-controller-manager|kube-scheduler|coracle-kube)$`), "<component>"},
	{regexp.MustCompile(`zone-\d`), "<zone>"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "<uid>"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "<server>"},
	{regexp.MustCompile(`(node-[abc])\b`), "<node>"},
	{regexp.MustCompile(`\b\d+(m|s|m\d+s)\b( \(x\d+ over <age>\))?`), "<age>"},
	{regexp.MustCompile(`\(x\d+ over <age>\)`), ""},
	{regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+|ZXlK[\w+/=]+`), "<token>"},
	{regexp.MustCompile(`-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----\n?|LS0tLS1CRUdJ[\w+/=]+`), "<certificate>"},
}

func newNormal(all []*unstructured.Unstructured) *normal {
	var pairs [][2]string
	for _, o := range all {
		name := o.GetName()
		key := fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), name)
		addresses, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "clusterIPs")
		for _, ip := range addresses {
			if ip != "None" && name != "kubernetes" {
				pairs = append(pairs, [2]string{ip, "<ip of " + key + ">"})
			}
		}
		if port, there, _ := unstructured.NestedInt64(o.Object, "spec", "healthCheckNodePort"); there {
			pairs = append(pairs, [2]string{fmt.Sprint(port), "<port of checks of " + key + ">"})
		}
		ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
		for i, port := range ports {
			if p, _ := port.(map[string]any); p != nil && p["nodePort"] != nil {
				pairs = append(pairs, [2]string{fmt.Sprint(p["nodePort"]), fmt.Sprintf("<port %d of %s>", i, key)})
			} else if p != nil && name == "kubernetes" {
				pairs = append(pairs, [2]string{fmt.Sprint(p["targetPort"]), "<port of the server>"})
			}
		}
	}
	// The longest first: one may begin with another.
	sort.SliceStable(pairs, func(i, j int) bool { return len(pairs[i][0]) > len(pairs[j][0]) })
	var flat []string
	for _, p := range pairs {
		flat = append(flat, p[0], p[1])
	}
	return &normal{names: strings.NewReplacer(flat...), used: map[string]int{}}
}

func (n *normal) line(text string) string {
	text = n.names.Replace(text)
	for _, p := range patterns {
		text = p.is.ReplaceAllString(text, p.to)
	}
	return text
}

// text is kubectl's output: lines in any order, columns of any width.
func (n *normal) text(output string) any {
	var object any
	if json.Unmarshal([]byte(output), &object) == nil {
		return n.value(object)
	}
	lines := lines{}
	for line := range strings.Lines(n.line(output)) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines[line]++
		}
	}
	return lines
}

// lines counts them.
type lines map[string]int

// unique is an object's path; those with a random name are counted.
func (n *normal) unique(resource string, o *unstructured.Unstructured) string {
	if group := o.GroupVersionKind().Group; group != "" {
		resource += "." + group
	}
	path := fmt.Sprintf("%s/%s/%s", resource, o.GetNamespace(), n.line(o.GetName()))
	n.used[path]++
	if count := n.used[path]; count > 1 {
		path += fmt.Sprint("#", count)
	}
	return path
}

func (n *normal) object(o *unstructured.Unstructured) any { return n.value(o.Object) }

// volatile are fields that are left out, wherever they are.
var volatile = []string{"resourceVersion", "uid"}

// value returns a normal copy. Lists that have no order get one.
func (n *normal) value(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, item := range v {
			if slices.Contains(volatile, key) {
				continue
			}
			item = n.value(item)
			if list, ok := item.([]any); ok {
				switch key {
				case "groups", "resources": // discovery's, but for RBAC's, which are strings
					item = keyed(list, "name")
				case "rules":
					item = permissions(list)
				case "conditions":
					item = keyed(list, "type")
				case "managedFields":
					item = keyed(list, "manager", "operation", "subresource")
				case "endpoints", "ownerReferences", "subsets", "addresses":
					sort.SliceStable(list, func(i, j int) bool { return text(list[i]) < text(list[j]) })
				}
			}
			out[n.line(key)] = item
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for _, item := range v {
			out = append(out, n.value(item))
		}
		return out
	case string:
		return n.line(v)
	case int64:
		if name := n.names.Replace(fmt.Sprint(v)); strings.HasPrefix(name, "<port") {
			return name
		}
		return v
	default:
		return v
	}
}

// permissions are RBAC's rules, in any order; other rules stay as they are.
func permissions(list []any) any {
	rules := lines{}
	for _, item := range list {
		rule, _ := item.(map[string]any)
		if rule["verbs"] == nil {
			return list
		}
		rules[text(rule)]++
	}
	return rules
}

// keyed makes a map of a list whose items are known by these fields; those with equal ones are
// merged.
func keyed(list []any, fields ...string) any {
	out := map[string]any{}
	for _, item := range list {
		object, ok := item.(map[string]any)
		if !ok {
			return list
		}
		var key []string
		for _, f := range fields {
			if object[f] != nil {
				key = append(key, fmt.Sprint(object[f]))
			}
		}
		at := strings.Join(key, " ")
		if _, there := out[at]; there {
			merge(out[at].(map[string]any), object)
			continue
		}
		out[at] = object
	}
	return out
}

// merge adds to a what only b has.
func merge(a, b map[string]any) {
	for key, item := range b {
		inner, ok := a[key].(map[string]any)
		if more, also := item.(map[string]any); ok && also {
			merge(inner, more)
		} else if a[key] == nil {
			a[key] = item
		}
	}
}

func text(v any) string {
	content, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(content)
}
