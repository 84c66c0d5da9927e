# Builds and runs the example against an installed Tersum:
#   cmake -DTERSUM_PREFIX=<install prefix> -DWORK_DIR=<scratch folder> [-DCMAKE_GENERATOR_NAME=Ninja]
#         [-DEXTRA_CACHE_ARGS=-DX=1;-DY=2] -P run.cmake
# Fails with the output of the step that failed.
cmake_minimum_required(VERSION 3.25)
foreach(variable TERSUM_PREFIX WORK_DIR)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "give -D${variable}=...")
  endif()
endforeach()

set(generator)
if(CMAKE_GENERATOR_NAME)
  set(generator -G ${CMAKE_GENERATOR_NAME})
endif()

function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${output}")
  endif()
  message(STATUS "${what}: ok\n${output}")
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
step("configure" ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/threshold -B ${WORK_DIR} ${generator}
  -DCMAKE_PREFIX_PATH=${TERSUM_PREFIX} -DCMAKE_BUILD_TYPE=Release ${EXTRA_CACHE_ARGS})
step("build" ${CMAKE_COMMAND} --build ${WORK_DIR} --config Release)
find_program(example out_of_tree PATHS ${WORK_DIR} ${WORK_DIR}/Release NO_DEFAULT_PATH REQUIRED)
step("run" ${example})
