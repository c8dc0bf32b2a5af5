package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
)

// apply hands a manifest to kubectl and waits until the Deployments in it are available. It tells
// what they wait for.
func (a *api) apply(ctx context.Context, p place, manifest string, tell func(string)) error {
	kubectl, err := lookPath("kubectl")
	if err != nil {
		return err
	}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, kubectl, append([]string{"--kubeconfig", p.kubeconfig()}, args...)...)
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("kubectl %s: %w:\n%s", strings.Join(args, " "), err, said.String())
		}
		return out.Bytes(), nil
	}
	applied, err := run("apply", "-f", manifest, "-o", "json")
	if err != nil {
		return err
	}
	all, err := deployments(applied)
	if err != nil {
		return fmt.Errorf("kubectl apply -f %s: %w", manifest, err)
	}
	return a.telling(ctx, p, all, tell, func() error {
		for _, d := range all {
			// What ends it earlier is ctx.
			_, err := run("wait", "--for=condition=Available", "--timeout=24h", "--namespace", d.Namespace, "deployment/"+d.Name)
			if ctx.Err() != nil {
				return fmt.Errorf("deployment %s/%s is not available: %w", d.Namespace, d.Name, ctx.Err())
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

type objectName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// deployments are the Deployments among what kubectl prints of one object, or of a List.
func deployments(data []byte) ([]objectName, error) {
	type object struct {
		Kind     string     `json:"kind"`
		Metadata objectName `json:"metadata"`
	}
	var top struct {
		object
		Items []object `json:"items"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		return nil, err
	}
	var names []objectName
	for _, o := range append(top.Items, top.object) {
		if o.Kind == "Deployment" {
			names = append(names, o.Metadata)
		}
	}
	return names, nil
}
