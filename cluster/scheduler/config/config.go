// Package config reads what upstream calls a KubeSchedulerConfiguration: the scheduler's profiles,
// their plugins, and extenders. Upstream's own packages decode it, give it defaults and validate
// it.
//
// What a file says and this scheduler does not do is an error that says what to do about it. It is
// never ignored: pods would be scheduled otherwise than the file says, and no one would notice.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.yaml.in/yaml/v3"
	componentconfig "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/coracle-project/coracle/cluster/internal/configline"
	"github.com/coracle-project/coracle/cluster/scheduler"
	"github.com/coracle-project/coracle/cluster/scheduler/extender"
)

// Flag is the one that names the file.
const Flag = "--scheduler-config"

// Load reads a file; an empty name gives upstream's defaults.
func Load(path string) (scheduler.Options, error) {
	if path == "" {
		return scheduler.Options{}, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return scheduler.Options{}, fmt.Errorf("%s: %w", Flag, err)
	}
	o, err := parse(data)
	if err != nil {
		return scheduler.Options{}, configline.Error(Flag, path, data, err)
	}
	return o, nil
}

func parse(data []byte) (scheduler.Options, error) {
	var none scheduler.Options
	if err := oneDocument(data); err != nil {
		return none, err
	}
	// Unknown and duplicate fields are errors.
	object, kind, err := scheme.Codecs.UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return none, err
	}
	c, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok {
		return none, fmt.Errorf("kind: it is a %s, not a KubeSchedulerConfiguration", kind.Kind)
	}
	c.APIVersion = kind.GroupVersion().String()
	if err := validation.ValidateKubeSchedulerConfiguration(c); err != nil {
		return none, err
	}
	// Without defaults: what is not said needs not be done.
	var said configv1.KubeSchedulerConfiguration
	if err := k8syaml.Unmarshal(data, &said); err != nil {
		return none, err
	}
	if err := notDone(&said); err != nil {
		return none, err
	}
	o := scheduler.Options{
		WithoutDefault: true,
		InitialBackoff: time.Duration(c.PodInitialBackoffSeconds) * time.Second,
		MaxBackoff:     time.Duration(c.PodMaxBackoffSeconds) * time.Second,
	}
	if said.Parallelism != nil { // upstream's default is of no use to us
		o.Parallelism = int(c.Parallelism)
	}
	if c.PercentageOfNodesToScore != nil {
		o.PercentageOfNodesToScore = int(*c.PercentageOfNodesToScore)
	}
	if err := profiles(&o, c, &said); err != nil {
		return none, err
	}
	for i := range c.Extenders {
		e, err := newExtender(c.Extenders[i])
		if err != nil {
			return none, fmt.Errorf("extenders[%d]: %w", i, err)
		}
		o.Extenders = append(o.Extenders, e)
	}
	return o, nil
}

// oneDocument refuses a file of several documents, of which only the first would count.
func oneDocument(data []byte) error {
	documents := yaml.NewDecoder(bytes.NewReader(data))
	for n := 0; ; n++ {
		var document yaml.Node
		switch err := documents.Decode(&document); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case n > 0:
			return fmt.Errorf("line %d: a second document starts: only one is allowed", document.Line)
		}
	}
}

// notDone says what is asked for outside of profiles that this scheduler does not do.
func notDone(said *configv1.KubeSchedulerConfiguration) error {
	var errs []error
	e := said.LeaderElection
	if asked := e != (componentconfig.LeaderElectionConfiguration{}); asked && (e.LeaderElect == nil || *e.LeaderElect) {
		errs = append(errs,
			errors.New("leaderElection.leaderElect: control-plane nodes elect the one that schedules by themselves: set it to false, or remove "+
				"leaderElection"))
	}
	if said.ClientConnection != (componentconfig.ClientConnectionConfiguration{}) {
		errs = append(errs, errors.New("clientConnection: how the API server is reached does not depend on this file: remove it"))
	}
	if on(said.EnableProfiling) || on(said.EnableContentionProfiling) {
		errs = append(errs,
			errors.New(
				"enableProfiling: profiles are served on the socket of the cluster process: set it and enableContentionProfiling to false, or remove "+
					"both",
			))
	}
	if said.DelayCacheUntilActive {
		errs = append(errs, errors.New("delayCacheUntilActive: the scheduler of a node starts only when it leads: remove it"))
	}
	return errors.Join(errs...)
}

func on(flag *bool) bool { return flag != nil && *flag }

func newExtender(c config.Extender) (*extender.Extender, error) {
	switch {
	case c.URLPrefix == "":
		return nil, errors.New("urlPrefix: it is needed, such as http://127.0.0.1:8888/scheduler")
	case c.FilterVerb == "" && c.PrioritizeVerb == "" && c.BindVerb == "" && c.PreemptVerb == "":
		return nil, errors.New("it is asked nothing: set filterVerb, prioritizeVerb, preemptVerb or bindVerb, or remove it")
	case c.Weight != 0 && c.PrioritizeVerb == "":
		return nil, errors.New("weight: the extender gives no scores: remove it, or set prioritizeVerb")
	case c.HTTPTimeout.Duration < 0:
		return nil, errors.New("httpTimeout: it is below 0: set a time such as 5s")
	}
	return extender.New(c)
}
