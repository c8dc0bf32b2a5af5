package framework

import (
	"errors"
	"fmt"
	"strings"
)

// Code is a Status's kind.
type Code int8

const (
	// Success is what a nil Status means.
	Success Code = iota
	// Error is an unexpected failure; the pod is tried again after a back-off.
	Error
	// Unschedulable rejects the pod; preempting others may help.
	Unschedulable
	// Unresolvable rejects the pod, and preempting others cannot help.
	Unresolvable
	// Wait is Permit's answer for a pod that has to wait.
	Wait
	// Skip says that the plugin has nothing to do with the pod.
	Skip
)

// Status is a plugin's answer. It never changes once made, so that a plugin can give the same one
// for many nodes.
type Status struct {
	code    Code
	plugin  string
	reasons []string
	err     error
}

// NewStatus returns plugin's answer of the given kind, for reasons that users will read.
func NewStatus(code Code, plugin string, reasons ...string) *Status {
	return &Status{code: code, plugin: plugin, reasons: reasons}
}

// Skipped is the answer of a plugin that has nothing to do with a pod.
var Skipped = &Status{code: Skip}

// Errored returns plugin's answer that err kept it from answering.
func Errored(plugin string, err error) *Status {
	return &Status{code: Error, plugin: plugin, reasons: []string{err.Error()}, err: err}
}

// Code returns s's kind.
func (s *Status) Code() Code {
	if s == nil {
		return Success
	}
	return s.code
}

// Plugin returns the name of the plugin that answered.
func (s *Status) Plugin() string {
	if s == nil {
		return ""
	}
	return s.plugin
}

// Reasons returns why; each is counted by itself.
func (s *Status) Reasons() []string {
	if s == nil {
		return nil
	}
	return s.reasons
}

// Message returns the reasons as one text.
func (s *Status) Message() string { return strings.Join(s.Reasons(), ", ") }

// OK says whether s is success.
func (s *Status) OK() bool { return s.Code() == Success }

// Rejected says whether s is the answer that the pod does not fit, which is not an error.
func (s *Status) Rejected() bool { return s.Code() == Unschedulable || s.Code() == Unresolvable }

// Err returns s as an error, nil for success. A FitError that s was made of is found by errors.As.
func (s *Status) Err() error {
	switch {
	case s.OK():
		return nil
	case s.err != nil:
		return s.err
	}
	return errors.New(s.Message())
}

// wrap says at which point of which plugin an error came up.
func (s *Status) wrap(point string, p Plugin) *Status {
	return Errored(p.Name(), fmt.Errorf("running %s plugin %q: %w", point, p.Name(), s.Err()))
}
