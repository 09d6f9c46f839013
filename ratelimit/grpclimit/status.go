package grpclimit

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-dev/weir/ratelimit"
)

// Error is the status of a call that was denied, for handlers that decide by themselves; nil if d is an admission.
func Error(d *ratelimit.Decision) error {
	if d.Allowed {
		return nil
	}
	var details []protoadapt.MessageV1
	if d.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)})
	}
	var s *status.Status
	switch d.Status {
	case http.StatusTooManyRequests:
		name := d.Policy + "/" + d.Rule
		details = append(details, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject:     name,
			Description: fmt.Sprintf("the limit is %d in %v", d.Limit, d.Window),
			QuotaId:     name,
			QuotaValue:  d.Limit,
		}}})
		s = status.Newf(codes.ResourceExhausted, "rate limit %s of %d in %v is exceeded%s", name, d.Limit, d.Window, retry(d))
	case http.StatusServiceUnavailable:
		if d.Source == ratelimit.SourceCanceled {
			return status.Error(codes.Canceled, "the call ended before it was known to be within its rate limit")
		}
		s = status.Newf(codes.Unavailable, "the rate limit cannot be told at the moment%s", retry(d))
	default:
		s = status.New(codes.InvalidArgument, "the call lacks what its rate limit is counted by")
	}
	detailed, err := s.WithDetails(details...)
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}

func retry(d *ratelimit.Decision) string {
	if d.RetryAfter <= 0 {
		return ""
	}
	return fmt.Sprintf(", retry in %v", d.RetryAfter.Round(time.Millisecond))
}

// pushback is what retry policies of clients heed: a time in ms, rounded up, or -1 not to retry.
func pushback(d *ratelimit.Decision) metadata.MD {
	ms := int64(-1)
	if d.RetryAfter > 0 {
		ms = int64((d.RetryAfter + time.Millisecond - 1) / time.Millisecond)
	}
	return metadata.Pairs("grpc-retry-pushback-ms", strconv.FormatInt(ms, 10))
}
