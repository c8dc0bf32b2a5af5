package validate

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

var (
	schedulerPolicies = []specs.LinuxSchedulerPolicy{
		specs.SchedOther, specs.SchedFIFO, specs.SchedRR, specs.SchedBatch, specs.SchedISO, specs.SchedIdle, specs.SchedDeadline,
	}
	schedulerFlags = []specs.LinuxSchedulerFlag{
		specs.SchedFlagResetOnFork, specs.SchedFlagReclaim, specs.SchedFlagDLOverrun, specs.SchedFlagKeepPolicy,
		specs.SchedFlagKeepParams, specs.SchedFlagUtilClampMin, specs.SchedFlagUtilClampMax,
	}
	ioClasses = []specs.IOPriorityClass{specs.IOPRIO_CLASS_RT, specs.IOPRIO_CLASS_BE, specs.IOPRIO_CLASS_IDLE}
)

// checkScheduling checks when the process gets CPUs and disks.
func checkScheduling(p *specs.Process) error {
	if err := checkScheduler(p.Scheduler); err != nil {
		return err
	}
	if io := p.IOPriority; io != nil {
		if !slices.Contains(ioClasses, io.Class) {
			return invalid("process.ioPriority.class", "%q is no class, use one of %v", io.Class, ioClasses)
		}
		if io.Priority < 0 || io.Priority > 7 {
			return invalid("process.ioPriority.priority", "%d is out of range, use 0 to 7", io.Priority)
		}
	}
	if a := p.ExecCPUAffinity; a != nil {
		if !isList(a.Initial) {
			return invalid("process.execCPUAffinity.initial", "%q is no list of CPUs, write it like 0-3,7", a.Initial)
		}
		if !isList(a.Final) {
			return invalid("process.execCPUAffinity.final", "%q is no list of CPUs, write it like 0-3,7", a.Final)
		}
	}
	return nil
}

// checkScheduler checks what sched_setattr(2) takes for each policy.
func checkScheduler(s *specs.Scheduler) error {
	if s == nil {
		return nil
	}
	const field = "process.scheduler."
	if !slices.Contains(schedulerPolicies, s.Policy) {
		return invalid(field+"policy", "%q is no policy, use one of %v", s.Policy, schedulerPolicies)
	}
	for i, f := range s.Flags {
		if !slices.Contains(schedulerFlags, f) {
			return invalid(fmt.Sprintf("%sflags[%d]", field, i), "%q is no flag, use one of %v", f, schedulerFlags)
		}
	}
	realTime := s.Policy == specs.SchedFIFO || s.Policy == specs.SchedRR
	switch {
	case s.Nice < -20 || s.Nice > 19:
		return invalid(field+"nice", "%d is out of range, use -20 to 19", s.Nice)
	case s.Priority != 0 && !realTime:
		return invalid(field+"priority", "%d is of no use with %s, only SCHED_FIFO and SCHED_RR have one", s.Priority, s.Policy)
	case realTime && (s.Priority < 1 || s.Priority > 99):
		return invalid(field+"priority", "%d is out of range, use 1 to 99 with %s", s.Priority, s.Policy)
	case s.Policy != specs.SchedDeadline && (s.Runtime != 0 || s.Deadline != 0 || s.Period != 0):
		return invalid(field+"runtime", "%d, deadline %d and period %d are of no use with %s, only SCHED_DEADLINE has them", s.Runtime,
			s.Deadline, s.Period, s.Policy)
	}
	return nil
}
