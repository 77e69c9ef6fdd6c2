package check

import (
	"slices"
	"testing"

	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestCronJob: examples/jobs/cronjob.yaml is one as Kubernetes reads it, under a lock, whose pod is told why and isn't started twice.
func TestCronJob(t *testing.T) {
	var job batch.CronJob
	if err := yaml.UnmarshalStrict([]byte(read(t, "../../examples/jobs/cronjob.yaml")), &job); err != nil {
		t.Fatal(err)
	}
	spec := job.Spec.JobTemplate.Spec
	pod := spec.Template.Spec
	if job.APIVersion != "batch/v1" || job.Kind != "CronJob" || job.Spec.Schedule == "" || job.Spec.ConcurrencyPolicy != batch.ForbidConcurrent {
		t.Errorf("%s %s: %+v", job.APIVersion, job.Kind, job.Spec)
	}
	if spec.BackoffLimit == nil || *spec.BackoffLimit != 0 || pod.RestartPolicy != core.RestartPolicyNever || len(pod.Containers) != 1 {
		t.Fatalf("%+v", spec)
	}
	c := pod.Containers[0]
	named := slices.ContainsFunc(c.Env, func(v core.EnvVar) bool { return v.Name == "REDLOCK_MASTERS" })
	if !slices.Equal(c.Command[:2], []string{"redlock", "run"}) || c.Command[len(c.Command)-1] != "--" || len(c.Args) == 0 || !named {
		t.Errorf("%+v", c)
	}
}
