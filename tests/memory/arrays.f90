! Arrays of versions in Fortran: kinds, ranks and shapes are found again, and others than the published ones are
! refused.
program arrays
  use, intrinsic :: iso_c_binding, only: c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: real32, real64, int32, int64
  use nram
  implicit none
  type(nram_memory) :: producer, observer
  real(real64), pointer, contiguous :: words(:), others(:), cube(:, :, :), found_cube(:, :, :), found_line(:)
  real(real32), pointer, contiguous :: plane(:, :), found_plane(:, :)
  integer(int32), pointer, contiguous :: marks(:), found_marks(:)
  integer(int64), pointer :: found_count
  integer(int64), pointer :: count
  real(real64), target :: local
  type(c_ptr) :: seen
  integer(int64) :: version
  integer :: i, status

  call producer%open(budget=8388608_int64)
  call observer%open(budget=8388608_int64)
  call producer%map(words, [4096_int64], 'arrays')
  cube(1:2, 1:3, 1:4) => words(1:24)
  call c_f_pointer(c_loc(words(513)), plane, [5, 7])
  call c_f_pointer(c_loc(words(1025)), marks, [9])
  call c_f_pointer(c_loc(words(4096)), count)
  cube = reshape([(real(i, real64), i=1, 24)], [2, 3, 4])
  plane = reshape([(real(i, real32), i=1, 35)], [5, 7])
  marks = [(i, i=1, 9)]
  count = 11
  call producer%publish(words, step=3_int64, arrays=[nram_described('cube', cube), nram_described('plane', plane), &
                                                     nram_described('marks', marks), nram_described('count', count)])
  call producer%published(words, timeout_ms=120000)

  call observer%observe_address(seen, 0_int64, 'arrays', got=version)
  if (observer%step_of(seen) /= 3) error stop 'the step'
  call observer%find(found_cube, seen, 'cube')
  if (any(shape(found_cube) /= [2, 3, 4]) .or. any(abs(found_cube - cube) > 0)) error stop 'the cube'
  call observer%find(found_plane, seen, 'plane')
  if (any(shape(found_plane) /= [5, 7]) .or. any(abs(found_plane - plane) > 0)) error stop 'the plane'
  call observer%find(found_marks, seen, 'marks')
  if (any(shape(found_marks) /= [9]) .or. any(found_marks /= marks)) error stop 'the marks'
  call observer%find(found_count, seen, 'count')
  if (found_count /= 11) error stop 'the count'

  call observer%find(found_line, seen, 'cube', status=status)
  if (status /= nram_einval .or. associated(found_line)) error stop 'another rank is not refused'
  call observer%find(found_cube, seen, 'plane', status=status)
  if (status /= nram_einval .or. associated(found_cube)) error stop 'another kind is not refused'
  call observer%find(found_line, seen, 'line', status=status)
  if (status /= nram_enoent .or. associated(found_line)) error stop 'what is not there is not refused'
  call producer%publish(words, arrays=[nram_described('local', local)], status=status)
  if (status /= nram_einval) error stop 'what is not in the mapping is not refused'

  ! The next version has it elsewhere, and in another shape.
  call producer%publish(words, arrays=[nram_described('cube', words(25:40))])
  call producer%published(words, timeout_ms=120000)
  call observer%next_address(seen, 120000, version)
  if (version == 0) error stop 'no next version'
  call observer%find(found_line, seen, 'cube')
  if (size(found_line) /= 16) error stop 'the line'

  ! An empty one, and one in a mapping that is not the first.
  call producer%map(others, [512_int64], 'others')
  call producer%publish_all([c_loc(words), c_loc(others)], header='{"a": 1}', &
                            arrays=[nram_described('none', words(1:0)), nram_described('others', others)])
  call producer%published(words, timeout_ms=120000)
  call observer%next_address(seen, 120000, version)
  if (version == 0) error stop 'no next version'
  call observer%find(found_line, seen, 'none')
  if (size(found_line) /= 0) error stop 'nothing'
  call observer%find(found_line, seen, 'others', status=status)
  if (status /= nram_einval .or. associated(found_line)) error stop 'another mapping is not refused'
  if (observer%header_of(seen) /= '{"a": 1}') error stop 'the header'
  call observer%unmap_address(seen)
  call observer%unmap_address(seen, status=status)
  if (status /= nram_einval) error stop 'it is unmapped'
  call observer%close()
  call producer%close()
end program arrays
